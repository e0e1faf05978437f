"""Which sets of cards are partitions: which a container would best get, and what is wrong with a set that is none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.functions import is_gpu
from pci.host import Function
from pci.resource import encode, partition_variable
from pci.slices import MODULE_ID, PARTITION
from pci.vendors import NVIDIA
from plugin.cards.inventory import Device, Inventory
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Partition, Table
from program.errors import Refusal

#: What to do where a module ID is not known.
MAKE_KNOWN = "let gpu-plugin bind read it, or write it to fabric.modules of the config"

_NEAREST = 3  # partitions that are named where a set is none
#: Attributes. A device has 32 at most (ResourceSliceMaxAttributesAndCapacitiesPerDevice, kubernetes/api
#: resource/v1/types.go), and a table may have any partitions.
_MOST_PLACES = 14


def gpus(device: Device, ids: ModuleIDs) -> tuple[Function, ...]:
    """Return the functions of a device that may have NVLinks: whole GPUs of NVIDIA's, and what has a module ID."""
    return tuple(
        function
        for function in device.functions
        if device.mdev is None
        and function.physical_function is None
        and (function.address in ids.by_address or (function.vendor_id == NVIDIA and is_gpu(function)))
    )


def ids_of(inventory: Inventory, ids: ModuleIDs) -> ModuleIDs:
    """Return the module IDs of the GPUs that the node has."""
    return ids.of(gpu.address for device in inventory.devices for gpu in gpus(device, ids))


@dataclass(frozen=True, slots=True)
class Board:
    """The partitions of a node's GPUs: the manager's table, and which address is which module. `ids` has no address
    that the node does not have."""

    table: Table
    ids: ModuleIDs

    @property
    def is_wholly_known(self) -> bool:
        """Whether every module of the table has its address, so that a GPU without an ID is not on the board."""
        return self.table.modules <= set(self.ids.by_address.values())

    def gpus(self, device: Device) -> tuple[Function, ...]:
        return gpus(device, self.ids)

    def variables(self, partition: Partition | None) -> Mapping[str, str]:
        """Return the variable by which a container is told that its GPUs are a partition; none where they are none."""
        if partition is None:
            return {}
        return {partition_variable(partition.id): encode(self.addresses(partition.modules).values())}

    def is_unknown(self, device: Device) -> bool:
        """Whether the device has a GPU that may be on the board, and nobody knows which one it is."""
        return not self.is_wholly_known and any(gpu.address not in self.ids.by_address for gpu in self.gpus(device))

    def modules(self, device: Device) -> frozenset[int]:
        """Return the modules of a device, as far as they are known."""
        known = self.ids.by_address
        return frozenset(known[gpu.address] for gpu in self.gpus(device) if gpu.address in known)

    def partition(self, devices: Sequence[Device]) -> Partition | None:
        """Return the partition that is exactly the GPUs of these devices; None if they need none.

        Refusal if they are no partition, or nobody knows: of several GPUs that are no partition some have no NVLink to
        each other, and CUDA may fail or hang in the guest.
        """
        modules = frozenset(module for device in devices for module in self.modules(device))
        on_board = [device for device in devices if self.modules(device) or self.is_unknown(device)]
        unknown = [device.id for device in on_board if self.is_unknown(device)]
        is_alone = sum(len(self.gpus(device)) for device in on_board) == 1
        if is_alone and (unknown or modules not in self.table.by_modules):
            return None  # a GPU by itself works without
        subject = ", ".join(device.id for device in devices)
        if unknown:
            raise Refusal(
                subject,
                f"are no known partition: the module ID of {', '.join(unknown)} is not known",
                MAKE_KNOWN,
            )
        if not modules or modules in self.table.by_modules:
            return self.table.by_modules.get(modules)
        raise Refusal(
            subject,
            f"are modules {_listed(modules)}, which are no partition of the Fabric Manager",
            f"the nearest that are: {' or '.join(map(self._named, self._nearest(modules))) or 'none'}",
        )

    def preferred(
        self,
        available: Sequence[Device],
        must_include: Sequence[str],
        size: int,
        taken: frozenset[int],
    ) -> tuple[str, ...] | None:
        """Return the IDs of `size` devices that are one partition, in the order of their addresses, with those that
        must be included; None if there is none, or none is needed.

        `taken` are modules of active partitions that stay. Of several partitions the best leaves the most of the
        largest partitions whole, then the most of the next size; then those with the lower addresses.
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
        """Return how many partitions of that length are wholly free."""
        return sum(len(each.modules) == length and free.issuperset(each.modules) for each in self.table.partitions)

    def _nearest(self, modules: frozenset[int]) -> list[Partition]:
        """Return the partitions that differ least from a set, the smaller ones first."""
        differing = [each for each in self.table.partitions if len(each.modules) > 1]
        differing.sort(key=lambda each: (len(modules ^ set(each.modules)), len(each.modules), each.modules))
        return differing[:_NEAREST]

    def _named(self, partition: Partition) -> str:
        addresses = self.addresses(partition.modules)
        return ", ".join(str(addresses.get(module, f"module {module}")) for module in partition.modules)

    def attributes(self, device: Device) -> Mapping[str, int]:
        """Return what a DRA driver publishes of a device with one known module: `moduleID`, and `partitionN`, the ID of
        the partition of N GPUs that it is in.

        With matchAttribute partitionN, N devices are that partition. Where GPUs are in several partitions of a size, as
        on boards of sixteen, each of these has an attribute of its own, `partitionN_ID`.
        """
        modules = self.modules(device)
        if len(modules) != 1 or self.is_unknown(device):
            return {}
        (module,) = modules
        its = sorted((len(each.modules), each.id) for each in self.table.partitions if module in each.modules)
        places = {
            f"{PARTITION}{size}" if self._are_apart(size) else f"{PARTITION}{size}_{partition_id}": partition_id
            for size, partition_id in its
        }
        return {MODULE_ID: module, **dict(list(places.items())[:_MOST_PLACES])}

    def _are_apart(self, size: int) -> bool:
        """Whether no GPU is in two partitions of that size."""
        modules = [module for each in self.table.partitions if len(each.modules) == size for module in each.modules]
        return len(modules) == len(set(modules))

    def addresses(self, modules: Iterable[int]) -> Mapping[int, PCIAddress]:
        """Return the addresses of these modules, as far as they are known."""
        wanted = set(modules)
        return {module: address for address, module in self.ids.by_address.items() if module in wanted}


def _listed(modules: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(modules)))
