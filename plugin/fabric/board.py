"""Chooses sets of cards that are partitions for containers, and says why another set is no partition."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.functions import is_gpu
from pci.host import Function
from pci.resource import FABRIC_MANAGER, encode, partition_variable
from pci.slices import FABRIC_MANAGER_VERSION, MODULE_ID, PARTITION
from pci.vendors import NVIDIA
from plugin.cards.inventory import Device, Inventory
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Partition, Table
from program.errors import Refusal

#: The fix for an unknown module ID.
MAKE_KNOWN = "let gpu-plugin bind read it, or write it to fabric.modules of the config"

_NEAREST = 3  # partitions that are named if a set is no partition
#: Attributes. A device has 32 at most (ResourceSliceMaxAttributesAndCapacitiesPerDevice, kubernetes/api
#: resource/v1/types.go), and a table may have any partitions.
_MOST_PLACES = 13


def gpus(device: Device, ids: ModuleIDs) -> tuple[Function, ...]:
    """Return the functions of a device that may have NVLinks: NVIDIA's whole GPUs, and functions with a module ID."""
    return tuple(
        function
        for function in device.functions
        if device.mdev is None
        and function.physical_function is None
        and (function.address in ids.by_address or (function.vendor_id == NVIDIA and is_gpu(function)))
    )


def ids_of(inventory: Inventory, ids: ModuleIDs) -> ModuleIDs:
    """Return the module IDs of the GPUs that the node has."""
    present = {gpu.address for device in inventory.devices for gpu in gpus(device, ids)}
    return ModuleIDs({each: module for each, module in ids.by_address.items() if each in present}, ids.faults)


@dataclass(frozen=True, slots=True)
class Board:
    """The partitions of a node's GPUs: the manager's table, the module IDs of GPUs that the node has, and the manager's
    version, if it is known."""

    table: Table
    ids: ModuleIDs
    version: str | None = None

    def gpus(self, device: Device) -> tuple[Function, ...]:
        return gpus(device, self.ids)

    def variables(self, partition: Partition | None) -> Mapping[str, str]:
        """Return the variables that tell a container that its GPUs are this partition; for several GPUs also the
        version of the Fabric Manager, which the guest's driver must have. Empty for None."""
        if partition is None:
            return {}
        variables = {partition_variable(partition.id): encode(self.addresses(partition.modules).values())}
        return (
            variables
            if self.version is None or len(partition.modules) == 1
            else {**variables, FABRIC_MANAGER: self.version}
        )

    def is_unknown(self, device: Device) -> bool:
        """Whether the device has a GPU of unknown module ID that may be on the board."""
        known = self.ids.by_address
        if self.table.modules <= set(known.values()):
            return False  # a GPU without an ID is not on the board
        return any(gpu.address not in known for gpu in self.gpus(device))

    def modules(self, device: Device) -> frozenset[int]:
        """Return the known module IDs of a device."""
        known = self.ids.by_address
        return frozenset(known[gpu.address] for gpu in self.gpus(device) if gpu.address in known)

    def partition(self, devices: Sequence[Device]) -> Partition | None:
        """Return the partition that is exactly the GPUs of these devices; None if they need no partition.

        Refusal if they are no partition, or a module ID is not known. Without a partition some of several GPUs have no
        NVLink to each other, and CUDA may fail or hang in the guest.
        """
        modules = frozenset(module for device in devices for module in self.modules(device))
        on_board = [device for device in devices if self.modules(device) or self.is_unknown(device)]
        unknown = [device.id for device in on_board if self.is_unknown(device)]
        partition = self.table.by_modules(modules)
        is_alone = sum(len(self.gpus(device)) for device in on_board) == 1
        if is_alone and (unknown or partition is None):
            return None  # a single GPU works without a partition
        subject = ", ".join(device.id for device in devices)
        if unknown:
            wrong = f"are no known partition: the module ID of {', '.join(unknown)} is not known"
            raise Refusal(subject, wrong, MAKE_KNOWN)
        if not modules or partition is not None:
            return partition
        raise Refusal(
            subject,
            f"are modules {', '.join(map(str, sorted(modules)))}, which are no partition of the Fabric Manager",
            f"the nearest that are: {' or '.join(map(self._named, self._nearest(modules))) or 'none'}",
        )

    def preferred(
        self,
        available: Sequence[Device],
        must_include: Sequence[str],
        size: int,
        taken: frozenset[int],
    ) -> tuple[str, ...] | None:
        """Return the IDs of `size` available devices that are one partition, in the order of their addresses, including
        all of `must_include`; None if there is no such partition.

        `taken` are the modules of active partitions that stay active. The best partition leaves the most of the largest
        partitions whole, then the most of the next size; then the lower addresses decide.
        """
        free = {device.id: self.modules(device) for device in available if not self.is_unknown(device)}
        free = {device_id: modules for device_id, modules in free.items() if modules and not modules & taken}
        whole = frozenset(module for modules in free.values() for module in modules)
        sizes = sorted({len(each.modules) for each in self.table.partitions}, reverse=True)
        best: tuple[tuple[int, ...], tuple[str, ...]] | None = None
        for partition in self.table.partitions:
            modules = frozenset(partition.modules)
            chosen = tuple(sorted(device_id for device_id, its in free.items() if its <= modules))
            covered = frozenset(module for device_id in chosen for module in free[device_id])
            if len(chosen) != size or covered != modules or not set(must_include) <= set(chosen):
                continue
            left = whole - modules
            broken = tuple(-self._count(length, left) for length in sizes)
            if best is None or (broken, chosen) < best:
                best = (broken, chosen)
        return None if best is None else best[1]

    def _count(self, length: int, free: frozenset[int]) -> int:
        """Return how many partitions of `length` GPUs are wholly free."""
        return sum(len(each.modules) == length and free.issuperset(each.modules) for each in self.table.partitions)

    def _nearest(self, modules: frozenset[int]) -> list[Partition]:
        """Return the partitions that differ least from a set, the smaller ones first."""
        differing = [each for each in self.table.partitions if len(each.modules) > 1]
        differing.sort(key=lambda each: (len(modules ^ set(each.modules)), len(each.modules), each.modules))
        return differing[:_NEAREST]

    def _named(self, partition: Partition) -> str:
        addresses = self.addresses(partition.modules)
        return ", ".join(str(addresses.get(module, f"module {module}")) for module in partition.modules)

    def attributes(self, device: Device) -> Mapping[str, int | str]:
        """Return the attributes that a DRA driver publishes of a device: `moduleID`, `fabricManagerVersion` if known,
        and `partitionN`, the ID of the partition of N GPUs that has the device. If the device's module is unknown, or
        it has several, it is for guests with one device only: `moduleID` alone, and 0.

        N devices with one value of partitionN (matchAttribute) are that partition. Where GPUs are in several partitions
        of a size, as on boards of sixteen, the first that do not overlap are `partitionN`, and each other partition has
        its own attribute, `partitionN_ID`.
        """
        modules = self.modules(device)
        if self.is_unknown(device) or len(modules) > 1:
            return {MODULE_ID: 0}
        apart = self._apart()
        places = {
            f"{PARTITION}{size}" if partition_id in apart else f"{PARTITION}{size}_{partition_id}": partition_id
            for size, partition_id in sorted((len(each.modules), each.id) for each in self._having(modules))
        }
        version = {} if self.version is None else {FABRIC_MANAGER_VERSION: self.version}
        return {MODULE_ID: min(modules), **version, **dict(list(places.items())[:_MOST_PLACES])} if modules else {}

    def _having(self, modules: frozenset[int]) -> Iterator[Partition]:
        """Yield the partitions that have all of these modules."""
        return (each for each in self.table.partitions if modules.issubset(each.modules))

    def _apart(self) -> frozenset[int]:
        """Return the IDs of the first partitions of each size that do not overlap."""
        apart: list[Partition] = []
        for each in sorted(self.table.partitions):
            if not any(len(other.modules) == len(each.modules) and other.overlaps(each) for other in apart):
                apart.append(each)
        return frozenset(each.id for each in apart)

    def order(self, device: Device, free: frozenset[int]) -> tuple[tuple[int, str], ...]:
        """Return a sort key of devices: the first devices in this order that are one partition are those that
        `preferred` takes.

        For each size of partitions, the largest first, the key has how many wholly `free` partitions include the
        device, and their lowest address. So devices that break no partition come first, and devices of one partition
        side by side.
        """
        modules = self.modules(device)
        lowest: dict[int, list[str]] = {len(each.modules): [] for each in self.table.partitions}
        for each in self._having(modules) if modules else ():
            if free.issuperset(each.modules):
                lowest[len(each.modules)].append(min(map(str, self.addresses(each.modules).values())))
        return tuple((len(its), min(its, default="")) for _, its in sorted(lowest.items(), reverse=True))

    def addresses(self, modules: Iterable[int]) -> Mapping[int, PCIAddress]:
        """Return the known addresses of these modules."""
        wanted = set(modules)
        return {module: address for address, module in self.ids.by_address.items() if module in wanted}
