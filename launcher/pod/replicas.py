"""What each pod of a controller has of its own, and what several VMs of one manifest cannot share."""

from collections.abc import Iterator

from launcher.manifest.parser import Given
from launcher.vm.annotations import SUSPEND_TO
from launcher.vm.plain import PodObject, plain
from launcher.vm.spec import VirtualMachine
from launcher.vm.volumes.manifest import DataVolumeTemplate, Volume
from program.errors import UserError, together

#: Of a DataVolume's storage, or pvc: what a claim has under the same name.
_OF_CLAIM = ("accessModes", "resources", "storageClassName", "volumeMode")
#: Sources that CDI's VolumeImportSource has under the same name, and what its VolumeCloneSource calls those of a clone
#: (containerized-data-importer's doc/cdi-populators.md).
_IMPORTS = ("blank", "gcs", "http", "imageio", "registry", "s3", "vddk")
_CLONES = {"pvc": "PersistentVolumeClaim", "snapshot": "VolumeSnapshot"}
_OF_SOURCE = ("contentType", "preallocation")
_CDI = "cdi.kubevirt.io"


def templates_of(given: Given) -> dict[str, tuple[str, DataVolumeTemplate]]:
    """Return the VM's dataVolumeTemplates with their paths, by the name of the volume that has the claim."""
    if not isinstance(given.manifest, VirtualMachine):
        return {}
    by_claim = {
        template.metadata.name: (f"spec.dataVolumeTemplates[{index}].spec", template)
        for index, template in enumerate(given.manifest.spec.dataVolumeTemplates)
    }
    volumes = given.instance.spec.volumes
    return {volume.name: by_claim[volume.claim] for volume in volumes if volume.claim in by_claim}


def claim_spec(path: str, template: DataVolumeTemplate, namespace: str | None) -> tuple[PodObject, PodObject]:
    """Return the spec of a claim that CDI fills as the template says, and the source that the claim names.

    UserError, by the path, for what a claim of a StatefulSet cannot have.
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


def refuse_shared(given: Given, *, several: bool, beside: bool, own_claims: bool) -> None:
    """UserError for each thing that is of one VM alone.

    `several`: whether there are several VMs of this manifest. `beside`: whether a VM's next pod may run beside its last
    one. `own_claims`: whether each pod has claims of its templates, and for EFI's variables and the TPM's state.
    """
    errors: list[UserError] = []
    if several or beside:
        why = "several guests would have it" if several else "a Deployment may have two pods of one VM for some time"
        errors += (UserError(path, why, fix) for path, fix in _of_one(given, own_claims=own_claims))
    if several:
        why = "several guests would have the same one"
        errors += (UserError(path, why, "leave it out: each has its own by its name") for path in _identities(given))
    if errors:
        raise together(errors)


def _of_one(given: Given, *, own_claims: bool) -> Iterator[tuple[str, str]]:
    """Paths of what one pod alone may have, and what to do."""
    spec, templates = given.instance.spec, templates_of(given) if own_claims else {}
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
    if given.instance.metadata.annotations.suspend_to:
        yield f"metadata.annotations {SUSPEND_TO}", "leave it out, or run one VM as a Pod or by --as statefulset"
    for index, claim in enumerate(spec.resourceClaims):
        if claim.resourceClaimName is not None:
            yield f"spec.resourceClaims[{index}] {claim.name}", "name a resourceClaimTemplateName, or use --dra"


def _is_written(volume: Volume) -> bool:
    if volume.persistentVolumeClaim is not None:
        return not volume.persistentVolumeClaim.readOnly
    return volume.dataVolume is not None or volume.hostDisk is not None


def _identities(given: Given) -> Iterator[str]:
    domain = given.instance.spec.domain
    if domain.firmware.uuid is not None:
        yield "spec.domain.firmware.uuid"
    for index, interface in enumerate(domain.devices.interfaces):
        if interface.macAddress is not None:
            yield f"spec.domain.devices.interfaces[{index}].macAddress"
