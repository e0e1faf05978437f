"""The kinds of instance types and preferences, field by field. v1, v1beta1 and v1alpha2 have the same fields here."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from launcher.fields.objects import Ignored, Items, Object, OpenObject
from launcher.fields.scalars import Count, DNSLabel, DNSName, Text
from launcher.vm.cards.manifest import GPU, HostDevice, VirtualGPUOptions
from launcher.vm.cpu.manifest import NUMA, CPUFeature, CPUName, Realtime
from launcher.vm.disks.manifest import BlockSize, Bus
from launcher.vm.features.manifest import APIC, KVM, ClockOffset, FeatureState, Hyperv, Timers
from launcher.vm.firmware.manifest import EFI
from launcher.vm.memory.manifest import Hugepages, MemorySize
from launcher.vm.peripherals.manifest import TPM, Rng
from launcher.vm.security.manifest import LaunchSecurity
from launcher.vm.spec import IOThreads
from program.errors import Nonsense

APIVersion = Literal[
    "instancetype.kubevirt.io/v1",
    "instancetype.kubevirt.io/v1beta1",
    "instancetype.kubevirt.io/v1alpha2",
]
_HEADROOM = Ignored("it is headroom for hotplug, which there is not")


class TypeMetadata(OpenObject):
    name: DNSName
    namespace: DNSName | None = None


class CPUInstancetype(Object):
    """The guest's CPUs. `guest` is their number; the preference decides on sockets, cores and threads."""

    guest: Annotated[int, Field(ge=1, lt=2**32)]
    model: CPUName | None = None
    dedicatedCPUPlacement: bool | None = None
    isolateEmulatorThread: bool | None = None
    numa: NUMA | None = None
    realtime: Realtime | None = None
    maxSockets: Annotated[Any, _HEADROOM] = None


class MemoryInstancetype(Object):
    """The guest's memory. `overcommitPercent`: by how many percent the pod requests less."""

    guest: MemorySize
    hugepages: Hugepages | None = None
    overcommitPercent: Annotated[int, Field(ge=0, le=100)] = 0
    maxGuest: Annotated[Any, _HEADROOM] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.overcommitPercent and self.hugepages is not None:
            raise Nonsense("has both overcommitPercent and hugepages, which are all there", "expected one of them")
        return self


class InstancetypeSpec(Object):
    cpu: CPUInstancetype
    memory: MemoryInstancetype
    gpus: Items[GPU] = ()
    hostDevices: Items[HostDevice] = ()
    ioThreadsPolicy: Literal["shared", "auto", "supplementalPool"] | None = None
    ioThreads: IOThreads | None = None
    launchSecurity: LaunchSecurity | None = None
    nodeSelector: Mapping[Text, Text] | None = None
    schedulerName: Text | None = None
    annotations: Mapping[Text, Text] = {}


class Instancetype(Object):
    apiVersion: APIVersion
    kind: Literal["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"]
    metadata: TypeMetadata
    spec: InstancetypeSpec
    status: Annotated[Any, Ignored("it is the controllers'")] = None


class SpreadOptions(Object):
    across: Literal["SocketsCoresThreads", "SocketsCores", "CoresThreads"] = "SocketsCores"
    ratio: Annotated[int, Field(ge=1, lt=2**32)] | None = None


#: The names until v1beta1, with `prefer` before them, are taken too.
Topology = Literal["sockets", "cores", "threads", "spread", "any"]


class CPUPreferences(Object):
    preferredCPUTopology: (
        Topology | Literal["preferSockets", "preferCores", "preferThreads", "preferSpread", "preferAny"] | None
    ) = None
    spreadOptions: SpreadOptions = SpreadOptions()
    preferredCPUFeatures: Items[CPUFeature] = ()


class DevicePreferences(Object):
    preferredAutoattachGraphicsDevice: bool | None = None
    preferredAutoattachInputDevice: bool | None = None
    preferredAutoattachMemBalloon: bool | None = None
    preferredAutoattachPodInterface: bool | None = None
    preferredAutoattachSerialConsole: bool | None = None
    preferredBlockMultiQueue: bool | None = None
    preferredCdromBus: Bus | None = None
    preferredDisableHotplug: bool | None = None
    preferredDiskBlockSize: BlockSize | None = None
    preferredDiskBus: Bus | None = None
    preferredDiskCache: Literal["none", "writethrough", "writeback", "directsync"] | None = None
    preferredDiskDedicatedIoThread: bool | None = None
    preferredDiskIO: Literal["native", "threads"] | None = None
    preferredInputBus: Literal["usb", "virtio"] | None = None
    preferredInputType: Literal["tablet"] | None = None
    preferredInterfaceMasquerade: Mapping[Text, Any] | None = None
    preferredInterfaceModel: Text | None = None
    preferredLunBus: Bus | None = None
    preferredNetworkInterfaceMultiQueue: bool | None = None
    preferredPanicDeviceModel: Literal["hyperv", "isa", "pvpanic"] | None = None
    preferredRng: Rng | None = None
    preferredSoundModel: Literal["ich9", "ac97"] | None = None
    preferredTPM: TPM | None = None
    preferredUseVirtioTransitional: bool | None = None
    preferredVideoType: Text | None = None
    preferredVirtualGPUOptions: VirtualGPUOptions | None = None


class FeaturePreferences(Object):
    preferredAcpi: FeatureState | None = None
    preferredApic: APIC | None = None
    preferredHyperv: Hyperv | None = None
    preferredKvm: KVM | None = None
    preferredPvspinlock: FeatureState | None = None
    preferredSmm: FeatureState | None = None


class FirmwarePreferences(Object):
    """How the guest boots. preferredUseEfi and preferredUseSecureBoot are the older form of preferredEfi."""

    preferredEfi: EFI | None = None
    preferredUseBios: bool | None = None
    preferredUseBiosSerial: bool | None = None
    preferredUseEfi: bool | None = None
    preferredUseSecureBoot: bool | None = None


class MachinePreferences(Object):
    preferredMachineType: Text | None = None


class ClockPreferences(Object):
    preferredClockOffset: ClockOffset | None = None
    preferredTimer: Timers | None = None


class VolumePreferences(Object):
    preferredStorageClassName: Text | None = None


class CPURequirement(Object):
    guest: Count


class MemoryRequirement(Object):
    guest: MemorySize


class Requirements(Object):
    """The least that a guest with this preference needs."""

    cpu: CPURequirement | None = None
    memory: MemoryRequirement | None = None
    architecture: Text | None = None


class PreferenceSpec(Object):
    clock: ClockPreferences = ClockPreferences()
    cpu: CPUPreferences = CPUPreferences()
    devices: DevicePreferences = DevicePreferences()
    features: FeaturePreferences = FeaturePreferences()
    firmware: FirmwarePreferences = FirmwarePreferences()
    preferredLaunchSecurity: LaunchSecurity | None = None
    machine: MachinePreferences = MachinePreferences()
    volumes: VolumePreferences = VolumePreferences()
    preferredArchitecture: Text | None = None
    preferredSubdomain: DNSLabel | None = None
    preferredTerminationGracePeriodSeconds: Count | None = None
    preferSpreadSocketToCoreRatio: Count = 0
    requirements: Requirements = Requirements()
    annotations: Mapping[Text, Text] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        options = self.cpu.spreadOptions
        if self.topology == "spread" and options.across == "CoresThreads" and self.spread_ratio != 2:
            wrong = f"cpu.spreadOptions spreads over cores and threads with a ratio of {self.spread_ratio}"
            raise Nonsense(wrong, "expected 2, the threads that a core has")
        return self

    @property
    def topology(self) -> str:
        """What the vCPUs are: sockets, cores, threads, spread or any."""
        name = self.cpu.preferredCPUTopology or "sockets"
        return name.removeprefix("prefer").lower()

    @property
    def spread_ratio(self) -> int:
        return self.cpu.spreadOptions.ratio or self.preferSpreadSocketToCoreRatio or 2


class Preference(Object):
    apiVersion: APIVersion
    kind: Literal["VirtualMachinePreference", "VirtualMachineClusterPreference"]
    metadata: TypeMetadata
    spec: PreferenceSpec
    status: Annotated[Any, Ignored("it is the controllers'")] = None
