"""The controllers that keep one or many VMs' pods: a Deployment, a StatefulSet or a Job with the Pod as its template;
what each of its pods gets for itself, and what several VMs of one manifest cannot share.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from launcher.manifest.identity import NAME
from launcher.manifest.parser import ParsedVM
from launcher.pod.metadata import ID
from launcher.vm.annotations import SUSPEND_TO
from launcher.vm.lifecycle.pod import LONGEST_START
from launcher.vm.plain import PodObject, plain
from launcher.vm.spec import VirtualMachine
from launcher.vm.volumes.manifest import DataVolumeTemplate, Volume
from launcher.vm.volumes.pod import STATE_VOLUME
from program.errors import UserError, together

#: Of a DataVolume's storage, or pvc: what a claim has under the same name.
_OF_CLAIM = ("accessModes", "resources", "storageClassName", "volumeMode")
#: Sources that CDI's VolumeImportSource has under the same name, and what its VolumeCloneSource calls those of a clone
#: (containerized-data-importer's doc/cdi-populators.md).
_IMPORTS = ("blank", "gcs", "http", "imageio", "registry", "s3", "vddk")
_CLONES = {"pvc": "PersistentVolumeClaim", "snapshot": "VolumeSnapshot"}
_OF_SOURCE = ("contentType", "preallocation")
_CDI = "cdi.kubevirt.io"


def templates_of(parsed: ParsedVM) -> dict[str, tuple[str, DataVolumeTemplate]]:
    """Return the VM's dataVolumeTemplates with their paths, by the name of the volume that has the claim."""
    if not isinstance(parsed.manifest, VirtualMachine):
        return {}
    by_claim = {
        template.metadata.name: (f"spec.dataVolumeTemplates[{index}].spec", template)
        for index, template in enumerate(parsed.manifest.spec.dataVolumeTemplates)
    }
    volumes = parsed.instance.spec.volumes
    return {volume.name: by_claim[volume.claim] for volume in volumes if volume.claim in by_claim}


def claim_spec(path: str, template: DataVolumeTemplate, namespace: str | None) -> tuple[PodObject, PodObject]:
    """Return the spec of a claim that CDI fills from the template's source, and the object for that source.

    UserError, by the path, for fields that a claim of a StatefulSet cannot have.
    """
    spec = plain(template.spec, path)
    sizes = spec.get("storage") or spec.get("pvc") or {}
    if not (sizes.get("accessModes") and (sizes.get("resources") or {}).get("requests")):
        fix = "write storage.accessModes and storage.resources.requests.storage"
        raise UserError(path, "says no accessModes or no size, which the claims of a StatefulSet need", fix)
    if other := next((key for key in sizes if key not in _OF_CLAIM), None):
        raise UserError(path, f"has {other}, which no replica's own claim can have", "leave it out")
    if other := next((key for key in spec if key not in ("storage", "pvc", "source", *_OF_SOURCE)), None):
        fix = "leave it out, or fill a claim and clone it with source.pvc"
        raise UserError(f"{path}.{other}", "is not converted to a claim for each replica", fix)
    kind, source = _source(path, spec.get("source") or {}, namespace)
    name = template.metadata.name
    filled = {"apiGroup": _CDI, "kind": kind, "name": name}
    options = {key: spec[key] for key in _OF_SOURCE if key in spec}
    made = {
        "apiVersion": f"{_CDI}/v1beta1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"source": source, **options},
    }
    return {**{key: sizes[key] for key in _OF_CLAIM if key in sizes}, "dataSourceRef": filled}, made


def _source(path: str, source: PodObject, namespace: str | None) -> tuple[str, PodObject]:
    kind = next(iter(source), None)
    if kind in _IMPORTS:
        return "VolumeImportSource", source
    if kind not in _CLONES:
        fix = f"expected one of {', '.join((*_IMPORTS, *_CLONES))}"
        raise UserError(f"{path}.source", f"is {kind}, with which no replica's claim is filled", fix)
    cloned = source[kind] or {}
    if cloned.get("namespace") not in (None, namespace):
        wrong = f"is in {cloned['namespace']}, and a replica's claim is cloned in its own namespace"
        raise UserError(f"{path}.source.{kind}", wrong, "clone it there first, and say the VM's namespace with -n")
    return "VolumeCloneSource", {"kind": _CLONES[kind], "name": cloned.get("name")}


def refuse_shared(parsed: ParsedVM, *, several: bool, beside: bool, own_claims: bool) -> None:
    """Raise UserError for each thing that only one VM can have.

    `several`: the manifest makes several VMs. `beside`: a VM's next pod may run beside its last one. `own_claims`: each
    pod gets claims of its own, from templates, and for EFI's variables and the TPM's state.
    """
    errors: list[UserError] = []
    if several or beside:
        why = "several guests would have it" if several else "a Deployment may have two pods of one VM for some time"
        errors += (UserError(path, why, fix) for path, fix in _of_one(parsed, own_claims=own_claims))
    if several:
        why = "several guests would have the same one"
        errors += (UserError(path, why, "leave it out: each has its own by its name") for path in _identities(parsed))
    if errors:
        raise together(errors)


def _of_one(parsed: ParsedVM, *, own_claims: bool) -> Iterator[tuple[str, str]]:
    """Yield the paths of what only one pod can have, each with what to do."""
    spec, templates = parsed.instance.spec, templates_of(parsed) if own_claims else {}
    shareable = {disk.name for disk in spec.disks if disk.shareable} | spec.shared
    for index, volume in enumerate(spec.volumes):
        if volume.name not in templates and volume.name not in shareable and _is_written(volume):
            fix = "use --as statefulset: with dataVolumeTemplates each pod has claims of its own"
            yield f"spec.volumes[{index}] {volume.name}", fix
    if not own_claims:
        if spec.efi is not None and spec.efi.persistent:
            yield "spec.domain.firmware.bootloader.efi.persistent", "use --as statefulset"
        if spec.domain.devices.tpm is not None and spec.domain.devices.tpm.persistent:
            yield "spec.domain.devices.tpm.persistent", "use --as statefulset"
    if parsed.instance.metadata.annotations.suspend_to:
        yield f"metadata.annotations {SUSPEND_TO}", "leave it out, or run one VM as a Pod or by --as statefulset"
    for index, claim in enumerate(spec.resourceClaims):
        if claim.resourceClaimName is not None:
            yield f"spec.resourceClaims[{index}] {claim.name}", "name a resourceClaimTemplateName, or use --dra"


def _is_written(volume: Volume) -> bool:
    if volume.persistentVolumeClaim is not None:
        return not volume.persistentVolumeClaim.readOnly
    return volume.dataVolume is not None or volume.hostDisk is not None


def _identities(parsed: ParsedVM) -> Iterator[str]:
    domain = parsed.instance.spec.domain
    if domain.firmware.uuid is not None:
        yield "spec.domain.firmware.uuid"
    for index, interface in enumerate(domain.devices.interfaces):
        if interface.macAddress is not None:
            yield f"spec.domain.devices.interfaces[{index}].macAddress"


#: How often a VM that is to run to its end is tried once more in a new pod: Kubernetes' own default.
_RETRIES = 6
_WRONG_MANIFEST = 2  # the exit code of `run`, for which no other node helps
_LONGEST_LABEL = 63
#: Behind a StatefulSet's name in its pods' label controller-revision-hash.
_REVISION = "-0123456789"
_INDEX = "GPU_LAUNCHER_INDEX"
_INDEX_OF_JOB = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


class Kind(Enum):
    """The object that makes a VM's pod, as --as names it."""

    POD = "pod"
    DEPLOYMENT = "deployment"
    STATEFULSET = "statefulset"
    JOB = "job"

    @property
    def kind(self) -> str:
        """The object's kind."""
        return {"statefulset": "StatefulSet"}.get(self.value, self.value.title())

    @property
    def policies(self) -> tuple[str, ...]:
        """The restartPolicies that its pods may have."""
        return ("OnFailure", "Never") if self is Kind.JOB else ("Always",)


class Run(NamedTuple):
    """What runs a VM: the kind of object; how many replicas (None: one, and a scaler may change it); and how many of
    them may be unavailable while nodes are drained (None: no budget)."""

    kind: Kind = Kind.POD
    replicas: int | None = None
    max_unavailable: int | None = None

    @property
    def several(self) -> bool:
        return (self.replicas or 1) > 1


def refuse_unfit(parsed: ParsedVM, run: Run, policy: str, *, imports: bool) -> None:
    """Raise UserError for a VM that the controller cannot run: for its name, for its runStrategy, which gives the pod's
    restartPolicy, or for what only one pod can have."""
    _refuse_name(parsed.instance.metadata.name, run)
    if run.kind is Kind.POD:
        if run.replicas is not None:
            raise UserError("--replicas", "a Pod is one VM", "use --as statefulset, deployment or job")
    elif policy not in run.kind.policies:
        always = run.kind is not Kind.JOB
        wrong = f"a {run.kind.kind} {'starts a guest again whenever it ends' if always else 'is done with its guest'}"
        fix = "runStrategy: Always, or use --as job" if always else "RerunOnFailure or Once, or use --as statefulset"
        raise UserError("spec.runStrategy", f"{wrong}, and this VM's pod has restartPolicy: {policy}", f"write {fix}")
    if run.max_unavailable is not None and run.kind not in (Kind.DEPLOYMENT, Kind.STATEFULSET):
        fix = "use --as statefulset or deployment"
        raise UserError("--max-unavailable", f"Kubernetes counts no pods of a {run.kind.kind}", fix)
    if run.kind is Kind.JOB and parsed.instance.metadata.annotations.suspend_to:
        fix = "leave it out, or run the VM as a Pod or by --as statefulset"
        raise UserError(f"metadata.annotations {SUSPEND_TO}", "a Job would start a suspended guest again", fix)
    own_claims = run.kind is Kind.STATEFULSET and imports
    refuse_shared(parsed, several=run.several, beside=run.kind is Kind.DEPLOYMENT, own_claims=own_claims)


def _refuse_name(name: str, run: Run) -> None:
    """Raise UserError if the controller cannot have the name, or could make no pods of it: otherwise only the API
    server or the controller's events would tell. A Pod and a Deployment can have any name that a manifest can."""
    if run.kind is Kind.STATEFULSET:
        behind = _REVISION
    elif run.kind is Kind.JOB:
        behind = "" if run.replicas is None else f"-{max(run.replicas - 1, 0)}"
    else:
        return
    if len(name) + len(behind) > _LONGEST_LABEL:
        wrong = f"has {len(name)} characters, and a {run.kind.kind}'s pods have it in labels, at most"
        raise UserError("metadata.name", f"{wrong} {_LONGEST_LABEL - len(behind)} long", "shorten it")
    if behind and "." in name:
        wrong = f"{name!r} has a dot, and the host names of a {run.kind.kind}'s pods are made of it"
        raise UserError("metadata.name", wrong, f"write {name.replace('.', '-')!r}")


def run_by(run: Run, pod: PodObject, parsed: ParsedVM, state: PodObject | None, *, imports: bool) -> list[PodObject]:
    """Return the controller, after the objects that it needs. `state` is the claim of the VM's state."""
    if run.kind is Kind.POD:
        return [pod]
    metadata, policy = pod["metadata"], pod["spec"]["restartPolicy"]
    named = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    template = _template(pod, parsed)
    selector = {"matchLabels": {ID: metadata["labels"][ID]}}
    replicas = {"replicas": run.replicas} if run.replicas is not None else {}
    budget = [_budget(run.max_unavailable, named, selector)] if run.max_unavailable is not None else []
    spec: PodObject
    if run.kind is Kind.JOB:
        _name_by_index(template, metadata["name"], indexed=run.replicas is not None)
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": named}
        return [{**job, "spec": {**_to_its_end(run, policy), "template": template}}]
    made = {"apiVersion": "apps/v1", "kind": run.kind.kind, "metadata": named}
    if run.kind is Kind.DEPLOYMENT:
        # A second pod before the first one is gone would need a second card.
        spec = {
            **replicas,
            "selector": selector,
            "strategy": {"type": "Recreate"},
            # By default it would have failed after ten minutes, in which a large guest may still start.
            "progressDeadlineSeconds": LONGEST_START,
            "template": template,
        }
        return [*budget, {**made, "spec": spec}]
    sources, claims = _claims(parsed, state, imports=imports)
    own = {claim["metadata"]["name"] for claim in claims}
    volumes = [volume for volume in template["spec"]["volumes"] if volume["name"] not in own]
    template["spec"] = {**template["spec"], "volumes": volumes}
    spec = {
        **replicas,
        "serviceName": template["spec"].get("subdomain", named["name"]),
        # A VM that waits for a card keeps no other one from starting.
        "podManagementPolicy": "Parallel",
        "selector": selector,
        "template": template,
        **({"volumeClaimTemplates": claims} if claims else {}),
    }
    placed = {key: named[key] for key in ("namespace", "labels") if key in named}
    return [
        *({**each, "metadata": {**each["metadata"], **placed}} for each in sources),
        *budget,
        {**made, "spec": spec},
    ]


def pod_spec(made: Mapping[str, Any]) -> Any:
    """Return the spec of the pods that an object is or makes; None for an object of another kind."""
    if made["kind"] == Kind.POD.kind:
        return made["spec"]
    return made["spec"]["template"]["spec"] if made["kind"] in {kind.kind for kind in Kind} else None


def _template(pod: PodObject, parsed: ParsedVM) -> PodObject:
    """Return the pod without its name, as a template. Each pod's host name is its own, unless the manifest has one."""
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    spec = dict(pod["spec"])
    if parsed.instance.spec.hostname is None:
        del spec["hostname"]
    return {"metadata": metadata, "spec": spec}


def _to_its_end(run: Run, policy: str) -> PodObject:
    """Return a Job's own fields. If the VM is to be tried again, a disruption of a pod counts as no attempt; a wrong
    manifest ends the Job."""
    retries = _RETRIES if policy == "OnFailure" else 0
    codes = {"containerName": "compute", "operator": "In", "values": [_WRONG_MANIFEST]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    rules = [
        {"action": "FailJob", "onExitCodes": codes},
        *([{"action": "Ignore", "onPodConditions": disrupted}] if retries else ()),
    ]
    many = {"completions": run.replicas, "parallelism": run.replicas, "completionMode": "Indexed"}
    return {
        **(many if run.replicas is not None else {}),
        "backoffLimitPerIndex" if run.replicas is not None else "backoffLimit": retries,
        "podFailurePolicy": {"rules": rules},
        # Or a new pod would start beside the one that still shuts its guest down.
        "podReplacementPolicy": "Failed",
    }


def _name_by_index(template: PodObject, vm: str, *, indexed: bool) -> None:
    """Have the guest use the VM's name and its index: a Job gives each attempt's pod another name."""
    (container,) = template["spec"]["containers"]
    index = {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_OF_JOB}}}
    name = {"name": NAME, "value": f"{vm}-$({_INDEX})" if indexed else vm}
    others = [variable for variable in container["env"] if variable["name"] != NAME]
    command = [*container["command"], "--to-its-end"]
    # In a Job nothing is restarted in its pod: a failure policy takes no other.
    template["spec"] |= {
        "containers": [{**container, "command": command, "env": [*([index] if indexed else ()), name, *others]}],
        "restartPolicy": "Never",
    }


def _claims(parsed: ParsedVM, state: PodObject | None, *, imports: bool) -> tuple[list[PodObject], list[PodObject]]:
    """Return the sources of a StatefulSet's claims, and its volumeClaimTemplates."""
    claims: list[PodObject] = [{"metadata": {"name": STATE_VOLUME}, "spec": state["spec"]}] if state is not None else []
    sources = []
    for volume, (path, template) in (templates_of(parsed) if imports else {}).items():
        spec, source = claim_spec(path, template, parsed.namespace)
        claims.append({"metadata": {"name": volume}, "spec": spec})
        sources.append(source)
    return sources, claims


def _budget(max_unavailable: int, named: PodObject, selector: PodObject) -> PodObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": named,
        "spec": {
            "maxUnavailable": max_unavailable,
            "selector": selector,
            # A VM that is not ready keeps no drain waiting.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
