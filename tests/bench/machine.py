"""Synthetic machines: cards of two functions, each in an IOMMU group of its own, among other functions, and their
nodes below a directory that stands for /dev."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.compose import RTX_3090, Function, bridge, compose

RESOURCE = "nvidia.com/GA102_GEFORCE_RTX_3090"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"

_PORTS = 16
_FIRST_GROUP = 1000  # of the cards; those of the other functions are below

# Class, ID and driver of what else is in a server.
_OTHERS = (
    (0x010802, "144d:a80a", "nvme"),
    (0x020000, "15b3:101d", "mlx5_core"),
    (0x088000, "8086:09a2", None),
    (0x0C0330, "1022:148c", "xhci_hcd"),
)


@dataclass(frozen=True)
class Machine:
    """Directories that stand for /sys and /dev; `nodes` are the device nodes that each device comes with, by its ID,
    `groups` the numbers of the IOMMU groups."""

    sys: Path
    dev: Path
    nodes: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, int]

    def remove_node(self, device_id: str) -> None:
        """What the kernel does to /dev when the last function of a group leaves vfio-pci."""
        self._node(device_id).unlink()

    def put_back_node(self, device_id: str) -> None:
        self._node(device_id).touch()

    def _node(self, device_id: str) -> Path:
        return self.dev / "vfio" / str(self.groups[device_id])

    def check(self, device_ids: Collection[str], answer: api.AllocateResponse) -> None:
        """AssertionError where this is not the answer to one container that was assigned these devices."""
        (container,) = answer.container_responses
        assert dict(container.envs) == {VARIABLE: ",".join(sorted(device_ids))}, container
        nodes = {node for device_id in device_ids for node in self.nodes[device_id]}
        assert sorted(node.host_path for node in container.devices) == sorted(nodes), container
        assert all(node.container_path == node.host_path for node in container.devices), container
        assert {node.permissions for node in container.devices} == {"rw"}, container


def build(directory: Path, *, cards: int, others: int) -> Machine:
    """Write a machine below that directory: so many cards, evenly below 16 root ports, and so many other functions,
    the ports among them."""
    numbers = {_address(number, 0): number for number in range(cards)}
    compose(directory / "sys", (*_cards(numbers.values()), *_other_functions(others)))
    vfio = directory / "dev/vfio"
    (vfio / "devices").mkdir(parents=True)
    groups = {device_id: _FIRST_GROUP + number for device_id, number in numbers.items()}
    cdevs = {device_id: (f"vfio{2 * number}", f"vfio{2 * number + 1}") for device_id, number in numbers.items()}
    names = ["iommu", "vfio/vfio", *(f"vfio/{group}" for group in groups.values())]
    names += [f"vfio/devices/{cdev}" for pair in cdevs.values() for cdev in pair]
    for name in names:
        (directory / "dev" / name).touch()
    nodes = {
        device_id: (
            "/dev/vfio/vfio", f"/dev/vfio/{groups[device_id]}",
            *(f"/dev/vfio/devices/{cdev}" for cdev in cdevs[device_id]), "/dev/iommu",
        )
        for device_id in numbers
    }  # fmt: skip
    return Machine(sys=directory / "sys", dev=directory / "dev", nodes=nodes, groups=groups)


def _address(card: int, function: int) -> str:
    return f"0000:{1 + card % _PORTS:02x}:{card // _PORTS:02x}.{function}"


def _port(number: int) -> str:
    return f"0000:00:{1 + number:02x}.0"


def _cards(numbers: Collection[int]) -> Iterator[Function]:
    for number in numbers:
        port = number % _PORTS
        for function, (pci_id, pci_class) in enumerate(zip(RTX_3090, (0x030000, 0x040300), strict=True)):
            yield Function(
                address=_address(number, function), id=pci_id, pci_class=pci_class, path=f"pci0000:00/{_port(port)}",
                subsystem="1043:87b3", driver="vfio-pci", group=_FIRST_GROUP + number, numa=port * 2 // _PORTS,
                vfio=2 * number + function,
            )  # fmt: skip


def _other_functions(count: int) -> Iterator[Function]:
    for number in range(count):
        if number < _PORTS:
            yield bridge(_port(number), "1022:1483", path="pci0000:00", group=number, numa=number * 2 // _PORTS)
        else:
            pci_class, pci_id, driver = _OTHERS[number % len(_OTHERS)]
            yield Function(
                address=f"0000:{0x80 + number // 32:02x}:{number % 32:02x}.0", id=pci_id, pci_class=pci_class,
                path="pci0000:80", driver=driver, group=number, numa=1,
            )  # fmt: skip
