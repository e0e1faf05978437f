"""The facts about the node at one moment, and the conclusions for each device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from pci.address import PCIAddress
from pci.cordons import Cordon
from pci.functions import is_gpu, is_integrated_gpu, what
from pci.host import Details, Fault, Function, Host, PeerToPeer, Platform
from pci.viability import Hindrance
from plugin.cards.claimable import ClaimableCard, ClaimableVGPU
from plugin.cards.config import Config, Fabric, Serve
from plugin.cards.inventory import Device, Inventory
from plugin.cards.nodes import DeviceNodes, device_nodes, missing_node
from plugin.changes.users import Assignment, DeviceHolder, KubeletList, Name, Users, users
from plugin.fabric.board import Board, gpus
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.status import FabricStatus
from plugin.node.error_counts import ErrorCounts
from plugin.nvml import UNKNOWN, Identities, Identity
from program.problem import Problem

_NETWORK = 0x02  # the base class
_CLAIMS_UNKNOWN = "may have been prepared for a claim"


class DeviceState(StrEnum):
    """A device's state: FREE only if the devices of all pods and ResourceClaims are known, else ON_OFFER."""

    FREE = "free"
    ON_OFFER = "on offer"
    IN_USE = "in use"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    WITHHELD = "withheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The facts that only commands read about a node: its platform, the `details` of each function of a device, and
    `peer_to_peer` of GPUs, network cards and the bridges above them, where it can be read. `faults`: entries that could
    not be read."""

    platform: Platform = field(default_factory=Platform)
    details: Mapping[PCIAddress, Details] = field(default_factory=dict)
    peer_to_peer: Mapping[PCIAddress, PeerToPeer] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The facts about the node at one moment, and its name. None means that a part was not read.

    `cordons` are the node's cards that an operator took out of service.

    From the kernel: `host`, its `inventory` by the `config`, the `claimable` cards whose vGPUs are made when claimed,
    and `nodes`, the entries of /dev. `refusals` has each device that is bound to vfio for the claim that gets it, with
    the reason why it cannot be bound now, or None. `identities`: NVML's UUIDs and names of NVIDIA's cards.
    `journal_trouble`: why the journal cannot be read, if anything depends on it. `fallen` are the functions that fell
    off the bus, `errors` the PCIe errors that the kernel counted since the daemon began.

    From others: `assignments` is the kubelet's list of which pods have which devices, the last one if `sees_pods` is
    False; `resource_ids` are all IDs of resources in it, as KubeletList has them. `claimed` has the ResourceClaim
    (`namespace/name`) for which a device is prepared, by the device's ID; `claims_trouble` says why the driver's
    checkpoint cannot be read. `kept` has why a claim's device could not be bound, or given back to its driver, and, by
    its name, why a vGPU could not be made; `claimable_names` the name of each vGPU that is made for a claim, by the
    device's ID. `partitions` comes from the Fabric Manager and our own file of owners; `unlinked` has why the NVLinks
    of a device do not work.
    """

    config: Config
    host: Host
    inventory: Inventory
    node: str | None = None
    cordons: Mapping[PCIAddress, Cordon] = field(default_factory=dict)
    claimable: tuple[ClaimableCard, ...] = ()
    nodes: DeviceNodes | None = None
    refusals: Mapping[str, Hindrance | None] = field(default_factory=dict)
    identities: Identities = field(default_factory=Identities)
    journal_trouble: Problem | None = None
    fallen: frozenset[PCIAddress] | None = None
    errors: ErrorCounts | None = None
    assignments: frozenset[Assignment] | None = None
    resource_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sees_pods: bool = False
    claimed: Mapping[str, str] | None = None
    claims_trouble: Problem | None = None
    kept: Mapping[str, Hindrance] | None = None
    claimable_names: Mapping[str, str] = field(default_factory=dict)
    partitions: FabricStatus | None = None
    unlinked: Mapping[str, Hindrance] | None = None
    inspection: Inspection = field(default_factory=Inspection)

    def with_pods(self, listed: KubeletList) -> "Snapshot":
        """Return the snapshot with this list of the kubelet."""
        return replace(self, assignments=listed.assignments, resource_ids=listed.ids, sees_pods=True)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts that could not be read, or did not answer. Only the daemon knows the last three."""
        has_fabric = self.config.fabric is not None
        parts = {
            "device nodes": self.nodes is None,
            "pods": not self.sees_pods,
            "claims": not self._knows_claims,
            "partitions": has_fabric and (self.partitions is None or self.partitions.is_unknown),
            "functions off the bus": self.fallen is None,
            "PCIe errors": self.errors is None,
            "cards that could not be given back": self.kept is None and bool(self.inventory.to_bind),
            "NVLinks": has_fabric and self.unlinked is None,
        }
        return tuple(part for part, is_unknown in parts.items() if is_unknown)

    @property
    def not_read(self) -> tuple[Fault | Problem, ...]:
        """Unreadable sources, and why: entries of sysfs, the files of NVIDIA's driver, and our own files."""
        troubles = (self.identities.trouble, self.journal_trouble, self.claims_trouble)
        return (*self.host.faults, *(trouble for trouble in troubles if trouble is not None))

    @property
    def knows_users(self) -> bool:
        """Whether the devices of all pods and ResourceClaims are known."""
        return self.sees_pods and self._knows_claims

    @property
    def _knows_claims(self) -> bool:
        return self.claimed is not None or not self.inventory.published

    @property
    def idle(self) -> tuple[PCIAddress, ...]:
        """The functions of devices on offer that nobody has, without cards on their host's driver: such a card may
        sleep, and a read of its config space would wake it."""
        return tuple(
            function.address
            for device in self.inventory.offered
            if self.user(device) is None and device.id not in self.holders
            if not device.to_bind and self._unremembered(device) is None
            for function in device.functions
        )

    @cached_property
    def _users(self) -> Users:
        listed = KubeletList(assignments=self.assignments or frozenset(), ids=self.resource_ids)
        return users(self.host, listed, self.claimed or {})

    @cached_property
    def holders(self) -> Mapping[str, DeviceHolder]:
        """The pod that has each device, by the device's ID. Of two pods, it is the one that the kubelet does not count
        for the device: that is the trouble."""
        by_device = {}
        for device in self.inventory.devices:
            every = self._users.holders(_names(device))
            certain = [holder for holder in every if holder.is_certain] or every
            if certain:
                by_device[device.id] = next((each for each in certain if not each.assignment.is_of(device)), certain[0])
        return by_device

    @cached_property
    def troubles(self) -> Mapping[str, Hindrance]:
        """Why devices on offer are unhealthy, by device ID; without the healthy ones."""
        return {device.id: why for device in self.inventory.offered if (why := self._trouble(device)) is not None}

    def trouble(self, device: Device) -> Hindrance | None:
        """Return the trouble with a device, whether or not it is out of service; None if there is none."""
        return device.withheld or self.troubles.get(device.id)

    def cordon(self, device: Device) -> Cordon | None:
        """Return who took a device out of service; None if it is in service. A card's virtual functions and mediated
        devices go with it."""
        address = self._cordoned(device)
        return None if address is None else self.cordons[address]

    def _cordoned(self, device: Device) -> PCIAddress | None:
        addresses = _addresses(device)
        return next((address for address in self.cordons if address in addresses), None)

    @property
    def stray_cordons(self) -> tuple[PCIAddress, ...]:
        """The addresses out of service that belong to no device here."""
        known = frozenset().union(*map(_addresses, self.inventory.devices))
        return tuple(address for address in self.cordons if address not in known)

    def reason(self, device: Device) -> Hindrance | None:
        """Return why the device cannot be handed out now; None if it can."""
        trouble, cordoned = self.trouble(device), self._cordoned(device)
        if device.withheld is not None or cordoned is None:
            return trouble
        also = "" if trouble is None else f", and {trouble.wrong}"
        wrong = f"was taken out of service {self.cordons[cordoned]}{also}"
        return Hindrance(wrong, f"`kubectl gpuvm uncordon {self.node}/{cordoned}` has it in service again")

    def state(self, device: Device) -> DeviceState:
        """Return a device's state. A device out of service is CORDONED even if it has a trouble, and a device with a
        trouble is UNHEALTHY even if a pod has it."""
        if device.withheld is not None:
            return DeviceState.WITHHELD
        if self.cordon(device) is not None:
            return DeviceState.CORDONED
        if device.id in self.troubles:
            return DeviceState.UNHEALTHY
        if self.user(device) is not None:
            return DeviceState.IN_USE
        knows_claims = self.claimed is not None or device.serve is not Serve.DRA
        return DeviceState.FREE if self.sees_pods and knows_claims else DeviceState.ON_OFFER

    def claim(self, device: Device) -> str | None:
        """Return the ResourceClaim (`namespace/name`) for which the device is prepared; None if there is none."""
        claims = (claim for name in _names(device) for claim in self._users.claims.get(name, ()))
        return (self.claimed or {}).get(device.id) or next(claims, None)

    def user(self, device: Device) -> str | None:
        """Return the user of a device in words: `pod vms/a`, `ResourceClaim vms/gpu`; None if none is certain."""
        if (holder := self.holders.get(device.id)) is not None and holder.is_certain:
            return str(holder)
        return None if (claim := self.claim(device)) is None else f"ResourceClaim {claim}"

    def nodes_of(self, device: Device) -> tuple[str, ...]:
        """Return the paths of the device nodes of a device and its group; none if /dev was not looked at."""
        return () if self.nodes is None else device_nodes(device, self.nodes)

    def listing(self, resource: str) -> tuple[tuple[str, bool, int | None], ...]:
        """Return the kubelet's list for a resource: ID, True if healthy, NUMA node."""
        return tuple(
            (device.id, self.reason(device) is None, device.numa_node)
            for device in self.inventory.by_resource.get(resource, ())
        )

    @property
    def fabric(self) -> Fabric | None:
        """The config's Fabric Manager, with its version if that is known."""
        fabric = self.config.fabric
        return None if fabric is None else replace(fabric, version=fabric.version or self.host.nvidia_driver)

    @property
    def board(self) -> Board | None:
        """The board with NVSwitches; None if none is known."""
        return None if self.config.fabric is None or self.partitions is None else self.partitions.board

    def place(self, device: Device) -> Mapping[str, int | str]:
        """Return the device's place on the board, by attribute; empty if it has none."""
        return {} if self.board is None else self.board.attributes(device)

    def identity(self, device: Device) -> Identity:
        """Return NVML's UUID and name of a device; for a part of a card only the card's UUID. A device of several GPUs
        has no UUID."""
        lead = device.lead
        uuid, name = self.identities.by_address.get(lead.card, UNKNOWN)
        return Identity(uuid if sum(map(is_gpu, device.functions)) <= 1 else None, None if lead.is_virtual else name)

    def _trouble(self, device: Device) -> Hindrance | None:
        return (
            device.unhealthy
            # Nodes are made when a card is bound.
            or (None if self.nodes is None or device.to_bind else missing_node(device, self.nodes))
            or self._fallen(device)
            or self._failing(device)
            or self._held(device)
            or self._unremembered(device)
            or (self.kept or {}).get(device.id)
            or (self.refusals.get(device.id) if device.to_bind else None)
            or (self.unlinked or {}).get(device.id)
            or self._unpartitioned(device)
        )

    def unclaimable(self, vgpu: ClaimableVGPU) -> Hindrance | None:
        """Return why a vGPU cannot be made for a claim: one of our files cannot be read, or its card refused one; None
        if it can."""
        wrong = "cannot be made, since gpu-plugin could not remember it"
        return (
            _since(_CLAIMS_UNKNOWN, self.claims_trouble)
            or _since(wrong, self.journal_trouble)
            or (self.kept or {}).get(vgpu.name)
        )

    def _unremembered(self, device: Device) -> Hindrance | None:
        """Return the trouble with a device whose owner is unknown, since one of our files cannot be read."""
        is_vgpu = device.mdev is not None or device.lead.vgpu_type is not None
        is_made = is_vgpu and self.config.claimable(self.host, device.lead) is not None
        perhaps_ours = "is a vGPU that gpu-plugin may have made for a claim"
        bound = "cannot be bound to vfio, since its driver could not be remembered"
        return (
            (_since(_CLAIMS_UNKNOWN, self.claims_trouble) if device.serve is Serve.DRA else None)
            or (_since(bound, self.journal_trouble) if device.to_bind else None)
            or (_since(perhaps_ours, self.journal_trouble) if is_made else None)
        )

    def _fallen(self, device: Device) -> Hindrance | None:
        for function in device.functions:
            if function.address in (self.fallen or ()):
                return Hindrance(
                    f"fell off the bus: the config space of {function.address} reads as ones",
                    "reset the slot or the node, and look for AER errors in the kernel's log",
                )
        return None

    def _failing(self, device: Device) -> Hindrance | None:
        errors = self.errors or ErrorCounts()
        for function in device.functions:
            grown = errors.grown(function.address)
            kind = "fatal" if grown.fatal else "nonfatal" if grown.nonfatal else None
            if kind is not None:
                # Without numbers: a reason that changes is another line of the log, and another series in Prometheus.
                return Hindrance(
                    f"has had {kind} PCIe errors since the plugin began (AER of {what(function)})",
                    "see the kernel's log, have the card seated anew or replaced, and restart the plugin's pod",
                )
        return None

    def _unpartitioned(self, device: Device) -> Hindrance | None:
        """Return the trouble with a device for which no partition can be activated: its partition is active for
        somebody else, or the Fabric Manager is away, so that the free partitions are unknown."""
        if self.config.fabric is None or self.partitions is None:
            return None
        if self.partitions.lacks_owners and gpus(device, ModuleIDs({})):
            return _since("may be in the partition of a guest", self.partitions.trouble)
        if self.partitions.is_awaited and device.serve is Serve.DRA and gpus(device, ModuleIDs({})):
            wrong = f"waits for the Fabric Manager: {self.partitions.trouble}"
            return Hindrance(wrong, "start the manager, or see what keeps it from answering")
        if self.board is None:
            return None
        for each in self.partitions.others:
            if not self.board.modules(device).isdisjoint(each.modules):
                wrong = f"is in partition {each.id}, which is active, and gpu-plugin does not know for whom"
                return Hindrance(wrong, f"end its guest, and deactivate the partition: fmpm -d {each.id}")
        return None

    def _held(self, device: Device) -> Hindrance | None:
        """Return the trouble with a device that is in use, but not through the protocol that serves it."""
        by_dra = device.serve is Serve.DRA
        holder, claim = self.holders.get(device.id), self.claim(device)
        if holder is not None and not holder.is_certain:
            number, resource = holder.assignment.device_id, holder.assignment.resource
            wrong = f"may be in use by pod {holder.assignment.pod}, which has {number} of {resource}"
            why = "that may be the number of its IOMMU group, or of another kind of device"
            return Hindrance(f"{wrong}: {why}", "it is handed out again when the pod has ended")
        if holder is not None and (by_dra or not holder.assignment.is_of(device)):
            # A card that the device plugin gave out before DRA served it is still in use.
            assignment = holder.assignment
            is_another = assignment.resource != device.resource
            as_what = assignment.resource if is_another else f"{assignment.device_id} of {device.resource}"
            fix = "delete that pod, and let one device plugin alone serve the device"
            if by_dra and assignment.is_of(device):
                fix = "the card is free for claims when that pod ends: it has it from the device plugin"
            return Hindrance(f"is in use by pod {assignment.pod}, which has it as {as_what}", fix)
        if claim is not None and not by_dra:
            return Hindrance(f"is prepared for the ResourceClaim {claim}", "it is free when the pods of that claim end")
        return None


def _addresses(device: Device) -> frozenset[PCIAddress]:
    """Return the addresses by which a device can be out of service: its functions', and its card's."""
    return frozenset({device.lead.card, *(function.address for function in device.functions)})


def _names(device: Device) -> tuple[Name, ...]:
    """Return the functions of a device and its group, and its UUID if it is a mediated device."""
    uuids = () if device.mdev is None else (device.mdev.uuid,)
    return (*dict.fromkeys(function.address for function in (*device.functions, *device.members)), *uuids)


def _since(wrong: str, trouble: Problem | None) -> Hindrance | None:
    """Return the hindrance that follows from the trouble with one of our files; None without a trouble."""
    return None if trouble is None else Hindrance(f"{wrong}: {trouble.subject}: {trouble.wrong}", trouble.fix)


def peers_of(host: Host, inventory: Inventory) -> tuple[Function, ...]:
    """Return the functions that may exchange data without the processor, ascending: GPUs with a resource, except the
    processor's own, and network cards below a switch with such a GPU; no virtual functions."""
    gpus = [
        device.lead
        for device in inventory.devices
        if device.resource is not None and device.mdev is None and is_gpu(device.lead) and not device.lead.is_virtual
        if not is_integrated_gpu(host, device.lead)
    ]
    switches = {gpu.switch for gpu in gpus if gpu.switch is not None}
    cards = [
        function
        for function in host.functions.values()
        if function.pci_class >> 16 == _NETWORK and not function.is_virtual and function.switch in switches
    ]
    return tuple(sorted((*gpus, *cards), key=lambda function: function.address))
