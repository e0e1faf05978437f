"""spec.volumes: where the contents of disks come from. The pod brings them; the disks name them."""

from typing import Annotated, Literal

from launcher.manifest.scalars import AliasName, PathInImage, Quantity
from launcher.model import Ignored, Refused, model

_HOTPLUG = Refused("there is no hotplug: what a VM has, it has from its start; leave it out")


@model
class LocalObject:
    """A secret or config map of the VM's namespace."""

    name: str


@model
class HostDisk:
    path: str
    type: Literal["Disk", "DiskOrCreate"]
    capacity: Quantity | None = None
    shared: bool = False


@model
class PersistentVolumeClaim:
    claimName: str
    readOnly: bool = False
    hotpluggable: Annotated[None, _HOTPLUG] = None


@model
class DataVolume:
    name: str
    hotpluggable: Annotated[None, _HOTPLUG] = None


@model
class Ephemeral:
    persistentVolumeClaim: PersistentVolumeClaim


@model
class ContainerDisk:
    """An image with a disk in it. The pod mounts it; where the image comes from is between the pod and its node."""

    image: str
    path: PathInImage | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    imagePullSecret: str | None = None


@model
class EmptyDisk:
    capacity: Quantity


@model
class CloudInit:
    userData: str | None = None
    userDataBase64: str | None = None
    secretRef: LocalObject | None = None
    networkData: str | None = None
    networkDataBase64: str | None = None
    networkDataSecretRef: LocalObject | None = None


@model
class Sysprep:
    secret: LocalObject | None = None
    configMap: LocalObject | None = None


@model
class ConfigMapVolume:
    name: str
    optional: bool = False
    volumeLabel: str = ""


@model
class SecretVolume:
    secretName: str
    optional: bool = False
    volumeLabel: str = ""


@model
class DownwardAPIVolume:
    fields: Annotated[object, Ignored("the pod's own downwardAPI volume serves it")] = None
    volumeLabel: str = ""


@model
class ServiceAccountVolume:
    serviceAccountName: str


@model
class Volume:
    """A name and one source."""

    name: AliasName
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
    downwardMetrics: Annotated[
        None, Refused("the host's metrics come from KubeVirt's handler, which is not there; leave it out")
    ] = None
    memoryDump: Annotated[
        None, Refused("memory dumps are made by KubeVirt's handler, which is not there; leave it out")
    ] = None
