"""spec.volumes: where the contents of disks come from. The pod brings them; the disks name them.

And spec.dataVolumeTemplates of a VirtualMachine: claims that CDI, the Containerized Data Importer, makes and fills.
"""

import binascii
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import model_validator

from launcher.fields.objects import (
    Below,
    Ignored,
    Items,
    Object,
    OpenObject,
    PassedOn,
    Refused,
    one_of,
    placed,
    refuse_twice,
)
from launcher.fields.scalars import DNSLabel, DNSName, Matching, PathInImage, PathInPod, PathOnNode, Quantity, Text
from launcher.vm import paths
from program.errors import Nonsense

_FOR_DATA_VOLUME = PassedOn("they are for the DataVolume")
_MEBIBYTE = 1 << 20

Image = Annotated[Text, Matching(r"\S+", "is no image", "expected one like registry.example.com/disks/debian:13")]
VolumeLabel = Annotated[
    Text, Matching("[ -~]{0,32}", "is no label of an ISO 9660 volume", "expected at most 32 ASCII characters")
]

VolumeKind = Literal[
    "persistentVolumeClaim",
    "dataVolume",
    "hostDisk",
    "containerDisk",
    "emptyDisk",
    "ephemeral",
    "cloudInitNoCloud",
    "cloudInitConfigDrive",
    "configMap",
    "secret",
    "serviceAccount",
    "downwardAPI",
    "sysprep",
    "downwardMetrics",
    "containerPath",
]
KINDS: tuple[VolumeKind, ...] = get_args(VolumeKind)
#: Those that become an ISO.
MEDIA: tuple[VolumeKind, ...] = (
    *("cloudInitNoCloud", "cloudInitConfigDrive"),
    *("configMap", "secret", "serviceAccount", "downwardAPI", "sysprep"),
)


#: Those that a guest can mount by virtiofs: KubeVirt's, and claims that are DataVolumes'.
SHARED: tuple[VolumeKind, ...] = (
    *("persistentVolumeClaim", "dataVolume", "configMap", "secret", "serviceAccount", "downwardAPI", "containerPath"),
)


class LocalObject(Object):
    """The name of a secret or config map of the VM's namespace."""

    name: DNSName


class HostDisk(Object):
    """A file of the node. With `DiskOrCreate` it is made, `capacity` large, if it is not there."""

    path: PathOnNode
    type: Literal["Disk", "DiskOrCreate"]
    capacity: Quantity | None = None
    shared: Annotated[Any, Ignored("it is for live migration, which there is none of")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "Disk" and self.capacity:
            raise Nonsense("has a capacity, but type Disk is for a file that is there", "write type: DiskOrCreate")
        if self.capacity is not None and self.capacity < _MEBIBYTE and self.type == "DiskOrCreate":
            raise Below("capacity", f"{self.capacity} bytes", "expected at least 1Mi")
        return self


class EphemeralClaim(Object):
    claimName: DNSName
    readOnly: bool = False


class PersistentVolumeClaim(EphemeralClaim):
    hotpluggable: bool = False


class DataVolume(Object):
    """The claim of a DataVolume, which has its name."""

    name: DNSName
    hotpluggable: bool = False


class Ephemeral(Object):
    """A claim that stays as it is: what the guest writes goes with the pod."""

    persistentVolumeClaim: EphemeralClaim


class ContainerDisk(Object):
    """An image with a disk in it, which the pod mounts; its node pulls it."""

    image: Image
    path: PathInImage | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    imagePullSecret: Text | None = None


class EmptyDisk(Object):
    capacity: Quantity

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.capacity < _MEBIBYTE:
            raise Below("capacity", f"{self.capacity} bytes", "expected at least 1Mi")
        return self


class CloudInit(Object):
    userData: Text | None = None
    userDataBase64: Text | None = None
    secretRef: LocalObject | None = None
    networkData: Text | None = None
    networkDataBase64: Text | None = None
    networkDataSecretRef: LocalObject | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        users = ("userData", "userDataBase64", "secretRef")
        networks = ("networkData", "networkDataBase64", "networkDataSecretRef")
        filled = [[name for name in names if getattr(self, name)] for names in (users, networks)]
        for forms in filled:
            if len(forms) > 1:
                raise Nonsense(f"has both {forms[0]} and {forms[1]}", "expected one of them")
        if not any(filled):
            raise Nonsense("has neither user data nor network data", "expected userData, userDataBase64 or secretRef")
        for name in ("userDataBase64", "networkDataBase64"):
            try:
                # As Go reads it: padded, and lines may be broken.
                text = (getattr(self, name) or "").replace("\r", "").replace("\n", "")
                binascii.a2b_base64(text.encode(), strict_mode=True)
            except ValueError as error:
                raise Below(
                    name, f"is not base64: {str(error).lower()}", "expected what base64 prints of the data"
                ) from None
        return self


class Sysprep(Object):
    """A Windows answer file."""

    secret: LocalObject | None = None
    configMap: LocalObject | None = None

    _check = one_of(
        *("secret", "configMap"),
        none="has neither secret nor configMap",
        fix="expected one of them, with autounattend.xml or unattend.xml in it",
    )


class ConfigMapVolume(Object):
    name: DNSName
    optional: bool = False
    volumeLabel: VolumeLabel = ""


class SecretVolume(Object):
    secretName: DNSName
    optional: bool = False
    volumeLabel: VolumeLabel = ""


class DownwardAPIVolume(Object):
    fields: Annotated[Items[Mapping[Text, Any]], PassedOn("the items of the pod's own downwardAPI volume")] = ()
    volumeLabel: VolumeLabel = ""


class ServiceAccountVolume(Object):
    serviceAccountName: DNSName


class DownwardMetrics(Object):
    """Metrics of the host and the guest, as a disk of vhostmd's."""


class ContainerPath(Object):
    """A directory of the launcher's container that somebody else mounts there, as a cloud's webhook does."""

    path: PathInPod
    readOnly: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if paths.is_own(Path(self.path)):
            raise Below("path", f"{self.path!r} is the launcher's own", "expected a directory that a webhook mounts")
        return self


class Volume(Object):
    """A name and one source."""

    name: DNSLabel
    persistentVolumeClaim: PersistentVolumeClaim | None = None
    dataVolume: DataVolume | None = None
    hostDisk: HostDisk | None = None
    containerDisk: ContainerDisk | None = None
    emptyDisk: EmptyDisk | None = None
    ephemeral: Ephemeral | None = None
    cloudInitNoCloud: CloudInit | None = None
    cloudInitConfigDrive: CloudInit | None = None
    configMap: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    serviceAccount: ServiceAccountVolume | None = None
    downwardAPI: DownwardAPIVolume | None = None
    sysprep: Sysprep | None = None
    containerPath: ContainerPath | None = None
    downwardMetrics: DownwardMetrics | None = None
    memoryDump: Annotated[
        None, Refused("memory dumps are made by KubeVirt's handler, which is not there", "leave it out")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = self.present_fields(*KINDS)
        if not sources:
            raise Nonsense(f"the volume {self.name!r} has no source", f"expected one of {', '.join(KINDS)}")
        if len(sources) > 1:
            raise Nonsense(f"the volume {self.name!r} has both {sources[0]} and {sources[1]}", "expected one source")
        return self

    @property
    def claim(self) -> str | None:
        """The claim that the guest writes to; a DataVolume's has its name. None for a volume of another kind."""
        if self.dataVolume is not None:
            return self.dataVolume.name
        return self.persistentVolumeClaim.claimName if self.persistentVolumeClaim is not None else None

    @property
    def kind(self) -> VolumeKind:
        """The name of the volume's source."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


class DataVolumeMetadata(OpenObject):
    name: DNSName
    labels: Annotated[Mapping[Text, Text], _FOR_DATA_VOLUME] = {}
    annotations: Annotated[Mapping[Text, Text], _FOR_DATA_VOLUME] = {}


class DataVolumeTemplate(OpenObject):
    """A DataVolume that `gpu-launcher pod` prints. Its spec is CDI's, which checks it."""

    metadata: DataVolumeMetadata
    spec: Annotated[Mapping[Text, Any], PassedOn("it is for CDI")]


def is_block(spec: object) -> bool:
    """Return whether the spec of a claim, or of a DataVolume, says that it is a block device."""
    if not isinstance(spec, Mapping):
        return False
    claims = (spec, spec.get("pvc"), spec.get("storage"))
    return any(isinstance(claim, Mapping) and claim.get("volumeMode") == "Block" for claim in claims)


#: The kinds that the pod mounts as a directory of files, which a ROM may be one of.
WITH_FILES: tuple[VolumeKind, ...] = ("configMap", "secret", "persistentVolumeClaim", "dataVolume")


def check_service_account(name: str | None, volumes: tuple[Volume, ...]) -> None:
    """Raise Nonsense where a volume has the token of another service account than the pod's."""
    for volume in volumes:
        account = volume.serviceAccount
        if account is not None and name is not None and account.serviceAccountName != name:
            raise Nonsense(
                f"serviceAccountName is {name!r}, and the volume {volume.name!r} has the token of "
                f"{account.serviceAccountName!r}",
                "expected one account: a pod has one",
            )


def check_volumes(volumes: tuple[Volume, ...]) -> None:
    """Raise Nonsense for two volumes of one name, and for two volumes of a kind of which a guest has one."""
    refuse_twice([(path, volume.name) for path, volume in placed("volumes", volumes)], "rename one, and its disk")
    for kinds, what in _ONCE.items():
        same = [(path, volume.name) for path, volume in placed("volumes", volumes) if volume.kind in kinds]
        if len(same) > 1:
            (_, first), (path, second), *_ = same
            raise Below(path, f"the volumes {first!r} and {second!r} are both {what}", "expected one at most")


def check_templates(templates: tuple[DataVolumeTemplate, ...], volumes: Iterable[Volume]) -> None:
    """Raise Nonsense for two templates of one name, and for a template that no volume names (KubeVirt's webhook)."""
    names = placed("dataVolumeTemplates", [template.metadata.name for template in templates])
    refuse_twice(names, "rename one of them")
    named = {volume.claim for volume in volumes}
    for path, name in names:
        if name not in named:
            fix = f"add a volume with dataVolume: {{name: {name}}}, or leave the template out"
            raise Below(f"{path}.metadata.name", f"no volume names {name!r}", fix)


# They have one file each in the pod; and a guest's cloud-init looks for one data source.
_ONCE: dict[tuple[VolumeKind, ...], str] = {
    ("serviceAccount",): "a serviceAccount",
    ("downwardMetrics",): "the host's metrics",
    ("cloudInitNoCloud", "cloudInitConfigDrive"): "cloud-init's",
}
