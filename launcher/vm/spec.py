"""KubeVirt's kinds, and the fields directly below spec and spec.domain."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID, uuid5

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from launcher.fields.objects import Ignored, Items, Object, OpenObject, PassedOn, Refused, check_all, one_of, placed
from launcher.fields.scalars import Count, DNSLabel, DNSName, Text, UUIDText
from launcher.vm import relations
from launcher.vm.annotations import KNOWN, NAMES, OURS, Annotations, read_annotations, refuse_unconverted
from launcher.vm.cards.annotations import Word
from launcher.vm.cards.manifest import ResourceClaim, refuse_unknown_claims
from launcher.vm.cpu.manifest import CPU, check_sizes, check_vcpus
from launcher.vm.credentials.manifest import AccessCredential, check_credentials
from launcher.vm.devices import Devices, check_architecture
from launcher.vm.disks.manifest import Disk, check_disks, check_filesystems
from launcher.vm.features.manifest import Clock, Features
from launcher.vm.firmware.manifest import EFI, Chassis, Firmware, Machine
from launcher.vm.guest import ROM_OF, SEATS_OF
from launcher.vm.lifecycle.manifest import LivenessProbe, Probe, check_ports
from launcher.vm.memory.manifest import Memory, Resources
from launcher.vm.network.manifest import Interface, Network, check_networks
from launcher.vm.security.manifest import LaunchSecurity
from launcher.vm.volumes.manifest import (
    DataVolumeTemplate,
    Volume,
    check_service_account,
    check_templates,
    check_volumes,
)
from program.errors import Nonsense, UserError
from program.problem import excerpt

_SCHEDULING = PassedOn("it is for the pod and its scheduler")
_RESOLVER = PassedOn("it is for the pod, whose resolver passt gives to the guest")
#: The same API under two names, for KubeVirt's API server.
APIVersion = Literal["kubevirt.io/v1", "kubevirt.io/v1alpha3"]
_NOTHING = Annotations()
_UUIDS = UUID("b1f0bb32-6a7b-5d0e-9d4e-3f6f0a4c8b7e")
_LONGEST_NAME = 240
_LONGEST_LABEL = 63


def _no_receiver(strategy: Any) -> Any:
    if strategy == "WaitAsReceiver":
        raise Nonsense(
            "'WaitAsReceiver' waits for a live migration, which there is none of", "write Halted, then Always"
        )
    return strategy


def _annotations(value: Any) -> Annotations:
    if isinstance(value, dict):
        refuse_unconverted(value)
    return read_annotations(value)


def _annotations_of_vm(value: Any) -> Annotations:
    """Refuse ours: KubeVirt's controller gives an instance the annotations of the template, and none of the VM's."""
    if not isinstance(value, dict):
        raise Nonsense(f"found {excerpt(value)}", "expected a mapping")
    if names := [name for name in value if isinstance(name, str) and name.startswith(OURS)]:
        raise Nonsense(f"{excerpt(names[0])} is for the instance", "write it into spec.template.metadata.annotations")
    return Annotations()


#: The annotations of a VirtualMachine itself.
AnnotationsOfVM = Annotated[Annotations, PlainValidator(_annotations_of_vm, json_schema_input_type=dict[str, Any])]
ReadAnnotations = Annotated[
    Annotations,
    PlainValidator(_annotations),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                **{name: {"type": ["string", "null"]} for name in (*NAMES, *Word)},
                **{name: {"enum": [*values, "", None]} for name, values in KNOWN.items()},
                **{
                    name: {"type": ["string", "null"], "contentMediaType": "application/json"}
                    for name in (SEATS_OF, ROM_OF)
                },
            },
        },
    ),
]


def _named_or_generated(schema: dict[str, Any]) -> None:
    schema["required"].remove("name")
    schema["anyOf"] = [{"required": ["name"]}, {"required": ["generateName"]}]


class Named(OpenObject):
    """The names that a domain, and files after it, are called by: a file's name has 255 bytes (`_VARS.fd` at its end).

    Without a name it is generateName. The API server would add five characters by chance; here the same manifest is
    always the same VM.
    """

    model_config = ConfigDict(json_schema_extra=_named_or_generated)

    name: DNSName
    generateName: Text | None = None
    namespace: DNSLabel = "default"

    @model_validator(mode="before")
    @classmethod
    def _generate(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("name") and isinstance(value.get("generateName"), str):
            return {**value, "name": value["generateName"].rstrip("-.")}
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.namespace) + len(self.name) > _LONGEST_NAME:
            raise Nonsense(
                f"namespace and name have more than {_LONGEST_NAME} characters together", "shorten one of them"
            )
        return self


class Metadata(Named):
    uid: UUIDText | None = None
    labels: Annotated[Mapping[Text, Text], PassedOn("they are for the pod")] = {}
    annotations: ReadAnnotations = _NOTHING


class VMMetadata(Named):
    """The metadata of a VirtualMachine; its instance gets the name and namespace."""

    annotations: AnnotationsOfVM = _NOTHING


class TemplateMetadata(OpenObject):
    """The metadata that a VirtualMachine gives to its instance."""

    labels: Annotated[Mapping[Text, Text], PassedOn("they are for the pod")] = {}
    annotations: ReadAnnotations = _NOTHING


class IOThreads(Object):
    supplementalPoolThreadCount: Annotated[int, Field(ge=1, le=512)] | None = None


class Domain(Object):
    cpu: CPU = CPU.model_construct()
    memory: Memory = Memory.model_construct()
    resources: Resources = Resources.model_construct()
    machine: Machine = Machine.model_construct()
    firmware: Firmware = Firmware.model_construct()
    chassis: Chassis | None = None
    clock: Clock | None = None
    features: Features = Features.model_construct()
    devices: Devices = Devices.model_construct()
    ioThreadsPolicy: Literal["shared", "auto", "supplementalPool"] | None = None
    ioThreads: IOThreads | None = None
    launchSecurity: LaunchSecurity | None = None
    rebootPolicy: Literal["Reboot", "Terminate"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_all(
            partial(relations.check_firmware, self.firmware, self.features, self.devices, self.launchSecurity),
            partial(relations.check_hyperv, self.features, self.clock),
            partial(relations.check_security, self.launchSecurity, self.firmware, self.features, self.devices),
            partial(check_sizes, self.cpu, self.memory, self.resources),
            self._check_iothreads,
        )
        return self

    def _check_iothreads(self) -> None:
        pool = self.ioThreads is not None and self.ioThreads.supplementalPoolThreadCount is not None
        if pool != (self.ioThreadsPolicy == "supplementalPool"):
            raise Nonsense(
                "ioThreadsPolicy: supplementalPool and ioThreads.supplementalPoolThreadCount need each other",
                "expected both or neither",
            )

    @property
    def topology(self) -> tuple[int, int, int]:
        """Sockets, cores and threads, each at least 1."""
        return self.cpu.topology(self.resources)

    @property
    def vcpus(self) -> int:
        return self.cpu.vcpus(self.resources)

    @property
    def guest_memory(self) -> int:
        """Bytes; UserError if the manifest does not say how much."""
        memory = self.memory.of_guest(self.resources)
        if not memory:
            raise UserError(
                "the manifest",
                "gives the guest no memory",
                "expected domain.memory.guest or domain.resources.requests.memory",
            )
        return memory


class Spec(Object):
    domain: Domain
    architecture: Literal["amd64", "arm64"] = "amd64"
    terminationGracePeriodSeconds: Count = 30
    startStrategy: Literal["Paused"] | None = None
    networks: Items[Network] = ()
    volumes: Items[Volume] = ()
    resourceClaims: Items[ResourceClaim] = ()
    accessCredentials: Items[AccessCredential] = ()
    utilityVolumes: Annotated[None, Refused("they are for KubeVirt's own operations", "use volumes")] = None
    hostname: DNSLabel | None = None
    serviceAccountName: DNSName | None = None
    subdomain: Annotated[DNSLabel | None, PassedOn("it is for the pod")] = None
    livenessProbe: LivenessProbe | None = None
    readinessProbe: Probe | None = None
    evictionStrategy: Annotated[Any, Ignored("there is no live migration: an evicted pod shuts its guest down")] = None
    affinity: Annotated[Mapping[Text, Any] | None, _SCHEDULING] = None
    dnsConfig: Annotated[Mapping[Text, Any] | None, _RESOLVER] = None
    dnsPolicy: Annotated[Text | None, _RESOLVER] = None
    nodeSelector: Annotated[Mapping[Text, Text] | None, _SCHEDULING] = None
    priorityClassName: Annotated[Text | None, _SCHEDULING] = None
    schedulerName: Annotated[Text | None, _SCHEDULING] = None
    tolerations: Annotated[Items[Mapping[Text, Any]], _SCHEDULING] = ()
    topologySpreadConstraints: Annotated[Items[Mapping[Text, Any]], _SCHEDULING] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        domain, devices, architecture = self.domain, self.domain.devices, self.architecture
        arm64 = (domain.firmware, domain.features, domain.clock, domain.launchSecurity)
        check_all(
            partial(check_vcpus, domain.cpu, domain.resources, architecture),
            partial(check_volumes, self.volumes),
            partial(check_credentials, self.accessCredentials, self.volumes),
            partial(check_disks, self._disks, self.volumes, architecture),
            partial(check_filesystems, devices.filesystems, devices.disks, self.volumes),
            partial(check_service_account, self.serviceAccountName, self.volumes),
            partial(check_networks, devices.interfaces, self.networks),
            partial(check_architecture, devices, architecture),
            partial(refuse_unknown_claims, devices.entries_with_paths, self.resourceClaims),
            partial(relations.check_machine, domain.machine, architecture),
            *([partial(relations.check_arm64, *arm64)] if architecture == "arm64" else []),
            partial(relations.check_acpi_tables, domain.firmware, self.volumes),
            partial(check_ports, self.livenessProbe, "livenessProbe", self.on_pods_network),
            partial(check_ports, self.readinessProbe, "readinessProbe", self.on_pods_network),
        )
        return self

    @property
    def on_pods_network(self) -> tuple[Interface, ...]:
        """The guest's interfaces that have the pod's own network, by which the pod's address is the guest's."""
        others = {network.name for network in self.networks if not network.is_pods}
        return tuple(interface for interface in self.domain.devices.connected if interface.name not in others)

    @property
    def disks(self) -> tuple[Disk, ...]:
        """The disks of domain.devices, then one for each volume without a disk or filesystem, as KubeVirt's webhook
        makes them."""
        return tuple(disk for _, disk in self._disks)

    @property
    def _disks(self) -> list[tuple[str, Disk]]:
        """The disks, each behind its path, or behind its volume's."""
        disks = self.domain.devices.disks
        shown = {*self.shared, *(disk.name for disk in disks)}
        volumes = [(path, volume) for path, volume in placed("volumes", self.volumes) if volume.name not in shown]
        return [*placed("domain.devices.disks", disks), *((path, Disk(name=each.name)) for path, each in volumes)]

    @property
    def shared(self) -> frozenset[str]:
        """The names of the volumes that the guest mounts by virtiofs."""
        return frozenset(filesystem.name for filesystem in self.domain.devices.filesystems)

    @property
    def efi(self) -> EFI | None:
        """The EFI that the guest boots with, None for BIOS. An arm64 machine has no BIOS, and no secure boot."""
        bootloader = self.domain.firmware.bootloader
        if bootloader.efi is None and self.architecture == "arm64":
            return EFI(secureBoot=False)
        return bootloader.efi


def _check_annotations(instance: Any) -> Any:
    """Check an instance's annotations, or a template's, against its spec."""
    annotations, spec = instance.metadata.annotations, instance.spec
    check_all(
        partial(relations.check_entries, SEATS_OF, annotations.seats, spec.domain.devices),
        partial(relations.check_roms, annotations, spec.domain.devices, spec.volumes),
        partial(relations.check_on_drain, annotations, spec.livenessProbe),
    )
    return instance


class VirtualMachineInstance(Object):
    apiVersion: APIVersion
    kind: Literal["VirtualMachineInstance"]
    metadata: Metadata
    spec: Spec
    status: Annotated[Any, Ignored("it is the controllers'")] = None

    _check = model_validator(mode="after")(_check_annotations)

    @property
    def uuid(self) -> UUID:
        """The guest's UUID: the same at every start and on every machine, since guests tie licences to it."""
        return self.spec.domain.firmware.uuid or uuid5(_UUIDS, f"{self.metadata.namespace}/{self.metadata.name}")

    @property
    def hostname(self) -> str:
        """The guest's host name (KubeVirt's pkg/util/net/dns, SanitizeHostname)."""
        return self.spec.hostname or self.metadata.name.partition(".")[0][:_LONGEST_LABEL].rstrip("-")


class Template(Object):
    metadata: TemplateMetadata = TemplateMetadata.model_construct()
    spec: Spec

    _check = model_validator(mode="after")(_check_annotations)


class Matcher(Object):
    """A reference to an instance type or a preference: its name, or the volume whose labels have the name.

    `kind` is the cluster's where it is not said, and KubeVirt takes it in any case and in the plural too
    (pkg/instancetype/find/spec.go).
    """

    #: The kinds that it may name: the cluster's, and the namespace's.
    KINDS: ClassVar[tuple[str, str]]

    name: DNSName | None = None
    kind: Text | None = None
    revisionName: Annotated[Any, Ignored("it names a copy in the cluster; the one that is given counts")] = None
    inferFromVolume: Text | None = None
    inferFromVolumeFailurePolicy: Literal["Ignore", "Reject"] | None = None

    _check_named = one_of("name", "inferFromVolume", none="has neither name nor inferFromVolume")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.inferFromVolume is not None and self.kind is not None:
            raise Nonsense("has kind and inferFromVolume, which says the kind too", "leave kind out")
        if self.kind is not None and self.kind.lower() not in self._kinds():
            raise Nonsense(f"kind is {self.kind!r}", f"expected {' or '.join(self.KINDS)}")
        return self

    @property
    def wanted(self) -> str:
        """The kind, as the object itself writes it."""
        return self._kinds()[(self.kind or self.KINDS[0]).lower()]

    def _kinds(self) -> Mapping[str, str]:
        return {word: kind for kind in self.KINDS for word in (kind.lower(), f"{kind.lower()}s")}


class InstancetypeMatcher(Matcher):
    KINDS = ("VirtualMachineClusterInstancetype", "VirtualMachineInstancetype")


class PreferenceMatcher(Matcher):
    KINDS = ("VirtualMachineClusterPreference", "VirtualMachinePreference")


class VirtualMachineSpec(Object):
    """What makes an instance. `runStrategy` and `running` say when; that is decided before the launcher starts."""

    template: Template
    runStrategy: Annotated[
        Literal["Always", "RerunOnFailure", "Manual", "Halted", "Once"] | None, BeforeValidator(_no_receiver)
    ] = None
    running: bool | None = None
    dataVolumeTemplates: Items[DataVolumeTemplate] = ()
    instancetype: InstancetypeMatcher | None = None
    preference: PreferenceMatcher | None = None
    resourceClaimTemplates: Annotated[
        None,
        Refused(
            "claims that belong to a VM are a proposal, which KubeVirt's API does not have",
            "make the ResourceClaim, and name it by resourceClaimName in template.spec.resourceClaims "
            "(a claim that no pod has loses its card: docs/choosing.md says what keeps it)",
        ),
    ] = None
    updateVolumesStrategy: Annotated[Any, Ignored("it is for a VM that is changed while it runs")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_templates(self.dataVolumeTemplates, self.template.spec.volumes)
        if self.runStrategy is not None and self.running is not None:
            raise Nonsense("says both runStrategy and running", "expected one of them, like runStrategy: Always")
        return self


class VirtualMachine(Object):
    apiVersion: APIVersion
    kind: Literal["VirtualMachine"]
    metadata: VMMetadata
    spec: VirtualMachineSpec
    status: Annotated[Any, Ignored("it is the controllers'")] = None

    def instance(self) -> VirtualMachineInstance:
        """Return the instance that KubeVirt's controller would make: the VM's name, its template's annotations and
        spec. All of it is checked already."""
        metadata = Metadata.model_construct(
            name=self.metadata.name,
            namespace=self.metadata.namespace,
            labels=self.spec.template.metadata.labels,
            annotations=self.spec.template.metadata.annotations,
        )
        return VirtualMachineInstance.model_construct(
            apiVersion=self.apiVersion, kind="VirtualMachineInstance", metadata=metadata, spec=self.spec.template.spec
        )
