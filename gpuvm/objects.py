"""Objects of a cluster as checked values.

Anybody who may write an object in a namespace chooses most of its text: the name of a ConfigMap in a pod's volume, an
annotation, an event, the last words of a container. So a text here has no control characters, and a Name or a UID has
Kubernetes' form, so that it can be a word of a command line. Fields that kubectl-gpuvm does not use are left out.
Defaults are those of the API server.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic import AliasPath as At
from pydantic.alias_generators import to_camel

from pci.address import PCIAddress
from pci.slices import DRIVER, device_name_of, vgpu_names_of
from program.ending import Ending
from program.errors import Nonsense
from program.problem import printable

#: The label of every pod of gpu-launcher's, and of KubeVirt's, by which `kubectl get` finds them.
ID_LABEL = "vmi.kubevirt.io/id"
#: The annotation that only gpu-launcher's pods have.
MARK = "gpu-launcher.dev/memory"
#: The container in which the launcher runs.
CONTAINER = "compute"
#: Where the pod mounts the ConfigMap with the manifest.
MANIFEST_VOLUME, MANIFEST_FILE = "gpu-launcher-manifest", "vm.yaml"
#: Beside the manifest there: the flags of `gpu-launcher pod` that made the pod, a line each.
FLAGS_FILE = "pod-flags"
#: The annotation of a record whose VM `kubectl gpuvm stop` has stopped: when.
STOPPED = "gpu-launcher.dev/stopped"
#: The annotation of a record whose VM `kubectl gpuvm suspend` has suspended: the claim that has its memory.
SUSPENDED = "gpu-launcher.dev/suspended"
#: Where the pod mounts that claim.
SUSPENDED_VOLUME = "gpu-launcher-suspended"
#: The annotation of a pod whose launcher suspends its guest on SIGTERM, and its value.
_ON_DRAIN, _SUSPENDS = "gpu-launcher.dev/on-drain", "suspend"
#: Where the pod says what its VM is called, unless it is the pod's name.
NAME_VARIABLE = "GPU_LAUNCHER_NAME"
#: The launcher's flag, and the annotation, of a pod to which a guest is moved: the uid of the pod that has the guest.
RECEIVE, MOVED_FROM = "--receive", "gpu-launcher.dev/moved-from"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ENDED = ("Succeeded", "Failed")

#: A DNS subdomain, as the names of these objects are (kubernetes.io/docs/concepts/overview/working-with-objects/names).
NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"

Text = Annotated[str, AfterValidator(printable)]
Name = Annotated[str, StringConstraints(pattern=NAME)]
UID = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][-0-9A-Za-z]{0,127}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Drop nulls: to the API server null is the same as no field."""
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


class Owner(_Part):
    kind: Text
    name: Text
    uid: Text


class Metadata(_Part):
    name: Name
    namespace: Name = ""
    uid: UID = ""
    labels: Mapping[Text, Text] = {}
    annotations: Mapping[Text, Text] = {}
    owner_references: tuple[Owner, ...] = ()
    creation_timestamp: Text = ""
    deletion_timestamp: Text = ""  # empty unless it is being deleted
    deletion_grace_period_seconds: int = 0


class Condition(_Part):
    type: Text = ""
    status: Text = ""
    reason: Text = ""
    message: Text = ""
    last_transition_time: Text = ""


class Running(_Part):
    started_at: Text = ""


class Terminated(_Part):
    exit_code: int = 0
    reason: Text = ""
    message: Text = ""


class Waiting(_Part):
    reason: Text = ""
    message: Text = ""


class _Resource(_Part):
    resource_id: Text = Field("", validation_alias="resourceID")


class _Resources(_Part):
    name: Text = ""
    resources: tuple[_Resource, ...] = ()


class ContainerStatus(_Part):
    name: Text = ""
    started: bool = False
    running: Running | None = Field(None, validation_alias=At("state", "running"))
    waiting: Waiting | None = Field(None, validation_alias=At("state", "waiting"))
    terminated: Terminated | None = Field(None, validation_alias=At("state", "terminated"))
    terminated_before: Terminated | None = Field(None, validation_alias=At("lastState", "terminated"))
    allocated_resources_status: tuple[_Resources, ...] = ()

    @property
    def ended(self) -> Terminated | None:
        """Return how the container ended, now or before its restart; None if it never has."""
        return self.terminated or self.terminated_before


class _Named(_Part):
    name: Text = ""


class _IP(_Part):
    ip: Text = ""


class _Volume(_Part):
    name: Text = ""
    config_map: Text = Field("", validation_alias=At("configMap", "name"))
    claim: Text = Field("", validation_alias=At("persistentVolumeClaim", "claimName"))
    host_path: Text = Field("", validation_alias=At("hostPath", "path"))


class Container(_Part):
    name: Text = ""
    image: Text = ""
    command: tuple[Text, ...] = ()
    readiness_command: tuple[Text, ...] = Field((), validation_alias=At("readinessProbe", "exec", "command"))
    limits: Mapping[Text, Text] = Field({}, validation_alias=At("resources", "limits"))
    claims: tuple[_Named, ...] = Field((), validation_alias=At("resources", "claims"))
    apparmor: Text = Field("", validation_alias=At("securityContext", "appArmorProfile", "localhostProfile"))


class _PodClaim(_Part):
    resource_claim_name: Text = ""
    resource_claim_template_name: Text = ""


class PodSpec(_Part):
    node_name: Text = ""
    restart_policy: Text = "Always"
    termination_grace_period_seconds: int = 30
    scheduler_name: Text = "default-scheduler"
    scheduling_gates: tuple[_Named, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[_Volume, ...] = ()
    resource_claims: tuple[_PodClaim, ...] = ()

    @property
    def launcher(self) -> Container:
        """Return the launcher's container; an empty one if somebody has removed it."""
        return next((each for each in self.containers if each.name == CONTAINER), Container())

    @property
    def manifest_name(self) -> str:
        """Return the pod's name for the ConfigMap with its manifest, not checked to be a Name; "" for none."""
        return next((each.config_map for each in self.volumes if each.name == MANIFEST_VOLUME), "")

    @property
    def suspended_claim(self) -> str:
        """Return the pod's name for the claim for the suspended guest's memory, not checked to be a Name; ""
        for none."""
        return next((each.claim for each in self.volumes if each.name == SUSPENDED_VOLUME), "")


class AnyObject(_Part):
    kind: Text
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def vm(self) -> str:
        """The VM's name."""
        return self.metadata.labels.get(ID_LABEL, self.metadata.name)

    @property
    def place(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class _WithConditions(AnyObject):
    conditions: tuple[Condition, ...] = Field((), validation_alias=At("status", "conditions"))

    def condition(self, kind: str) -> Condition:
        """Return the condition of that type; an empty one if there is none."""
        return next((each for each in self.conditions if each.type == kind), Condition())


class Pod(_WithConditions):
    kind: Literal["Pod"]
    spec: PodSpec
    phase: Text = Field("Unknown", validation_alias=At("status", "phase"))
    reason: Text = Field("", validation_alias=At("status", "reason"))
    message: Text = Field("", validation_alias=At("status", "message"))
    ips: tuple[_IP, ...] = Field((), validation_alias=At("status", "podIPs"))
    containers: tuple[ContainerStatus, ...] = Field((), validation_alias=At("status", "containerStatuses"))
    made_claims: tuple[_PodClaim, ...] = Field((), validation_alias=At("status", "resourceClaimStatuses"))
    extended_claim: _PodClaim = Field(_PodClaim(), validation_alias=At("status", "extendedResourceClaimStatus"))

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations

    @property
    def has_ended(self) -> bool:
        return self.phase in _ENDED

    @property
    def is_paused(self) -> bool:
        """Return whether the guest has run since its launcher started, and does not run now. The default readiness
        probe tells: `test -e` a file that exists while the guest runs. Times are in whole seconds."""
        running, ready = self.launcher.running, self.condition("Ready")
        if running is None or ready.status != "False" or self.spec.launcher.readiness_command[:1] != ("test",):
            return False
        return "" < running.started_at < ready.last_transition_time

    @property
    def has_started(self) -> bool:
        """Return whether the launcher runs or has run, so that there may be a guest."""
        status = self.launcher
        return self.phase != "Pending" or bool(status.running or status.ended)

    @property
    def launcher(self) -> ContainerStatus:
        """Return the status of the launcher's container; an empty one before it exists."""
        return next((each for each in self.containers if each.name == CONTAINER), ContainerStatus())

    @property
    def is_suspended(self) -> bool:
        """Return whether the guest's memory is saved, for the guest to go on in another pod."""
        return self._has_ended(Ending.SUSPENDED)

    @property
    def is_suspended_by_its_deletion(self) -> bool:
        """Return whether the guest runs, and its launcher saves its memory when the pod is deleted."""
        return self.launcher.running is not None and self.annotations.get(_ON_DRAIN) == _SUSPENDS

    @property
    def is_moved(self) -> bool:
        """Return whether the guest has gone on in another pod."""
        return self._has_ended(Ending.MOVED)

    def _has_ended(self, ending: Ending) -> bool:
        status = self.launcher
        return status.running is None and status.ended is not None and status.ended.exit_code == ending.code

    @property
    def has_claims(self) -> bool:
        """Return whether every claim from a template was made."""
        templates = [each for each in self.spec.resource_claims if each.resource_claim_template_name]
        return len(self.made_claims) >= len(templates)

    @property
    def claim_names(self) -> list[str]:
        """Return the pod's names for its ResourceClaims, those from templates too; they are not checked to be Names."""
        claims = (*self.spec.resource_claims, *self.made_claims, self.extended_claim)
        return sorted({each.resource_claim_name for each in claims if each.resource_claim_name})


class Controller(_WithConditions):
    """An object that makes pods of VMs. `spec` and `annotations` are those of its pods."""

    kind: Literal["Deployment", "StatefulSet", "Job"]
    spec: PodSpec = Field(validation_alias=At("spec", "template", "spec"))
    annotations: Mapping[Text, Text] = Field({}, validation_alias=At("spec", "template", "metadata", "annotations"))
    replicas: int = Field(1, validation_alias=At("spec", "replicas"))
    is_suspended: bool = Field(False, validation_alias=At("spec", "suspend"))

    @property
    def has_ended(self) -> bool:
        """Return whether a Job has ended; no other controller does."""
        return any(self.condition(kind).status == "True" for kind in ("Complete", "Failed"))

    @property
    def is_stopped(self) -> bool:
        """Return whether the controller is to have no pod: it is scaled to 0, or a Job that is suspended or has
        ended."""
        return self.has_ended or self.is_suspended or self.replicas == 0

    @property
    def applied_replicas(self) -> int:
        """Return the number of replicas in the last `kubectl apply`; 1 if unknown. Anybody who can write this
        annotation can scale the controller anyway."""
        try:
            return _Applied.model_validate_json(self.metadata.annotations.get(_LAST_APPLIED, "{}")).replicas
        except ValidationError:
            return 1


class _Applied(_Part):
    replicas: int = Field(1, ge=1, strict=True, validation_alias=At("spec", "replicas"))


VMObject = Pod | Controller


class ConfigMap(AnyObject):
    kind: Literal["ConfigMap"]
    data: Mapping[Text, str] = {}


class VolumeClaim(AnyObject):
    """A PersistentVolumeClaim."""

    access_modes: tuple[Text, ...] = Field((), validation_alias=At("spec", "accessModes"))


class Event(_Part):
    type: Text = ""
    reason: Text = ""
    message: Text = ""
    time: Text = Field("", validation_alias=AliasChoices("lastTimestamp", "eventTime"))


class _Device(_Part):
    driver: Text = ""
    pool: Text = ""
    device: Text = ""
    share_id: Text = Field("", validation_alias="shareID")

    @property
    def key(self) -> tuple[str, ...]:
        return self.driver, self.pool, self.device, self.share_id


class AllocatedDevice(_Device):
    binding_conditions: tuple[Text, ...] = ()
    binding_failure_conditions: tuple[Text, ...] = ()


class ClaimedDevice(_Device):
    conditions: tuple[Condition, ...] = ()


class ResourceClaim(AnyObject):
    results: tuple[AllocatedDevice, ...] = Field((), validation_alias=At("status", "allocation", "devices", "results"))
    devices: tuple[ClaimedDevice, ...] = Field((), validation_alias=At("status", "devices"))
    reserved_for: tuple[_Named, ...] = Field((), validation_alias=At("status", "reservedFor"))

    def __str__(self) -> str:
        pods = ", ".join(each.name for each in self.reserved_for)
        return f"claim {self.place}" + (f" of {pods}" if pods else "")

    def has(self, node: str, address: PCIAddress) -> bool:
        """Return whether the claim has this card of a node, or a vGPU of the card."""
        card, vgpus = device_name_of(address), vgpu_names_of(address)
        of_node = [each.device for each in self.results if (each.driver, each.pool) == (DRIVER, node)]
        return any(each == card or each.startswith(vgpus) for each in of_node)


def objects_in(text: bytes) -> list[Any]:
    """Return the unchecked objects in the JSON that `kubectl get -o json` prints: a list's, or a single one; [] for an
    empty text. Nonsense for anything else."""
    try:
        answer = json.loads(text) if text.strip() else {"items": []}
        return list(answer.get("items", [answer]))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Nonsense("its answer is no JSON of objects", "") from error


def checked(objects: list[Any], kind: Any) -> list[Any]:
    """Return objects as values of a kind. Nonsense if one does not have its form."""
    try:
        values: list[Any] = _adapter(kind).validate_python(objects)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise Nonsense(f"its answer is not as the API server's: {path}: {first['msg']}", "") from error
    return values


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(list[kind])
