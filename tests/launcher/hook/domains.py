"""Domains of KubeVirt's with cards of recorded machines, one for each thing that it does with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.hook.kubevirt_domain import VMIRequest, read_vmi
from launcher.hook.rewrite import Rewritten, rewritten
from tests.launcher.hook.kubevirt import Card, Parts, domain, vmi
from tests.processes import FIXTURES

A100S = tuple(f"0000:{bus}:00.0" for bus in ("bd", "07", "47", "0f", "4e", "87", "90", "b7"))
RTX_3090S = ("0000:e1:00.0", "0000:01:00.0")
#: An Arc, whose audio is on another slot, and a Radeon.
SEVERAL_GROUPS = ("0000:43:00.0", "0000:03:00.0")
VGPU = "11111111-0000-4000-8000-000000000001"
NUMA = {"gpu-launcher.dev/topology": "numa"}
MIRROR = {"gpu-launcher.dev/topology": "mirror"}
ON_ROOT_COMPLEX = {"kubevirt.io/placePCIDevicesOnRootComplex": "true"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A domain on a machine of fixtures/sysfs. `libvirt` is the oldest that takes it, where that is not Debian 12's."""

    name: str
    machine: str
    parts: Parts
    gpus: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    libvirt: tuple[int, int, int] = (9, 0, 0)

    @property
    def sysfs(self) -> Path:
        return FIXTURES / "sysfs" / self.machine

    @property
    def xml(self) -> bytes:
        return domain(self.parts)

    @property
    def asked(self) -> VMIRequest:
        return read_vmi(vmi(self.gpus, annotations=self.annotations))

    def answer(self, xml: bytes | None = None) -> Rewritten:
        return rewritten(self.xml if xml is None else xml, self.asked, self.sysfs)

    def emulated(self) -> "Case":
        return replace(self, parts=replace(self.parts, kind="qemu"))


def gpus(*sources: str, list_: str = "gpu") -> tuple[Card, ...]:
    return tuple(Card(alias=f"{list_}-gpu{number}", source=source) for number, source in enumerate(sources, start=1))


def sriov(source: str, at: str = "") -> str:
    """A network card as KubeVirt passes it on, behind the cards."""
    return Card(alias="sriov-net9", source=source).xml.replace("<alias", f"{at}<alias")


def _by_numa_node(*cards: tuple[Card, int]) -> Parts:
    """KubeVirt's PCIe NUMA-aware topology: an expander for each cell, and a root port for each card."""
    controllers, placed, index = [], [], 0
    for cell in sorted({cell for _, cell in cards}):
        index = expander = index + 1
        controllers.append(
            f'<controller type="pci" index="{expander}" model="pcie-expander-bus">'
            f'<target busNr="{254 - 8 * cell}"><node>{cell}</node></target></controller>'
        )
        for slot, card in enumerate(card for card, at in cards if at == cell):
            index += 1
            controllers.append(
                f'<controller type="pci" index="{index}" model="pcie-root-port"><address type="pci" domain="0x0000"'
                f' bus="{expander}" slot="0x{slot:02x}" function="0x0"/></controller>'
            )
            placed.append(replace(card, at=(index, 0)))
    cells = "".join(
        f'<cell id="{cell}" cpus="{8 * cell}-{8 * cell + 7}" memory="{4 << 20}" unit="KiB">'
        "<distances>"
        + "".join(f'<sibling id="{other}" value="{10 if other == cell else 32}"/>' for other in range(4))
        + "</distances></cell>"
        for cell in range(4)
    )
    memnodes = "".join(f'<memnode cellid="{cell}" mode="strict" nodeset="{2 * cell + 1}"/>' for cell in range(4))
    # Eight CPUs each of the recorded HGX's nodes 1, 3, 5 and 7, which have sixteen cores and the GPUs.
    pins = "".join(f'<vcpupin vcpu="{vcpu}" cpuset="{32 * (vcpu // 8) + 16 + vcpu % 8}"/>' for vcpu in range(32))
    return Parts(
        cards=tuple(placed),
        more="".join(controllers),
        vcpus=32,
        memory=16 << 30,
        cpu=f'<topology sockets="1" cores="32" threads="1"/><numa>{cells}</numa>',
        head=f'<numatune><memory mode="strict" nodeset="1,3,5,7"/>{memnodes}</numatune><cputune>{pins}</cputune>'
        '<memoryBacking><hugepages/><allocation mode="immediate"/></memoryBacking>',
    )


_EIGHT = gpus(*A100S)
#: By the cells of _by_numa_node, which are the machine's nodes 1, 3, 5 and 7.
_IN_CELLS = _by_numa_node(*zip(_EIGHT, (2, 1, 0, 1, 0, 3, 3, 2), strict=True))

CASES = (
    Case(name="1 GPU", machine="rtx-2060", parts=Parts(cards=gpus("0000:01:00.0"))),
    Case(name="2 GPUs", machine="two-rtx-3090", parts=Parts(cards=gpus(*RTX_3090S), disks=3, nics=2)),
    Case(name="8 GPUs", machine="hgx-a100-8-gpu", parts=Parts(cards=_EIGHT, disks=2, nics=3)),
    Case(name="numa", machine="hgx-a100-8-gpu", parts=Parts(cards=_EIGHT), annotations=NUMA),
    Case(name="mirror", machine="hgx-a100-8-gpu", parts=Parts(cards=_EIGHT), annotations=MIRROR),
    Case(
        name="mirror, memory of hugepages",
        machine="hgx-a100-8-gpu",
        parts=Parts(
            cards=_EIGHT,
            head='<memoryBacking><hugepages><page size="2048" unit="KiB"/></hugepages><source type="memfd"/>'
            "</memoryBacking>",
            cpu='<topology sockets="1" cores="4" threads="1"/><numa><cell id="0" cpus="0-3" memory="8388608"'
            ' unit="KiB"/></numa>',
        ),
        annotations=MIRROR,
    ),
    Case(name="large BARs", machine="two-h100", parts=Parts(cards=gpus("0000:41:00.0", "0000:c1:00.0"))),
    Case(
        name="large BARs, EFI",
        machine="two-h100",
        parts=Parts(
            cards=gpus("0000:41:00.0", "0000:c1:00.0"),
            efi=True,
            memory=64 << 30,
            command_line='<qemu:commandline><qemu:arg value="-fw_cfg"/>'
            '<qemu:arg value="name=opt/com.coreos/config,file=/run/ignition"/>'
            '<qemu:env name="A" value="1"/></qemu:commandline>',
        ),
    ),
    Case(
        name="pinned seats",
        machine="two-rtx-3090",
        parts=Parts(cards=gpus(*RTX_3090S)),
        annotations={"gpu-launcher.dev/seats": '{"gpu1": 3}'},
    ),
    Case(
        name="vGPU",
        machine="two-rtx-3090",
        parts=Parts(cards=(*gpus(RTX_3090S[0]), Card(alias="gpu-vgpu", source=VGPU))),
    ),
    Case(
        name="DRA",
        machine="two-rtx-3090",
        parts=Parts(
            cards=(
                Card(alias="dra-hostdevice-audio", source="0000:01:00.1"),
                Card(alias="dra-gpu-gpu1", source="0000:e1:00.0"),
            )
        ),
    ),
    Case(
        name="hostDevices before gpus",
        machine="two-rtx-3090",
        parts=Parts(
            cards=(
                Card(alias="hostdevice-other", source="0000:01:00.0"),
                Card(alias="gpu-gpu1", source="0000:e1:00.0"),
            )
        ),
    ),
    Case(
        name="SR-IOV",
        machine="two-rtx-3090",
        parts=Parts(
            cards=gpus(*RTX_3090S),
            more=sriov("0000:5e:00.2")
            + sriov(
                "0000:5e:00.3", '<address type="pci" domain="0x0000" bus="0x00" slot="0x10" function="0x0"/>'
            ).replace("net9", "net8"),
        ),
    ),
    Case(
        name="iommufd",
        machine="two-rtx-3090",
        parts=Parts(
            cards=tuple(replace(card, iommufd=True) for card in gpus(*RTX_3090S)),
            head='<iommufd enabled="yes" fdgroup="iommu"/>',
        ),
        libvirt=(12, 2, 0),
    ),
    Case(
        name="on the root complex",
        machine="two-rtx-3090",
        parts=Parts(cards=tuple(replace(card, at=(0, 3 + n)) for n, card in enumerate(gpus(*RTX_3090S)))),
        annotations=ON_ROOT_COMPLEX,
    ),
    Case(
        name="by KubeVirt's NUMA placement",
        machine="hgx-a100-8-gpu",
        parts=_IN_CELLS,
    ),
    Case(
        name="numa, over KubeVirt's placement",
        machine="hgx-a100-8-gpu",
        parts=_IN_CELLS,
        annotations=NUMA,
    ),
    Case(
        name="functions in groups of their own",
        machine="cards-of-several-groups",
        parts=Parts(cards=gpus(*SEVERAL_GROUPS), disks=2),
    ),
    Case(
        name="functions in groups of their own, mirror",
        machine="cards-of-several-groups",
        parts=Parts(cards=gpus(*SEVERAL_GROUPS)),
        annotations=MIRROR,
    ),
    Case(
        name="functions in groups of their own, on the root complex",
        machine="cards-of-several-groups",
        parts=Parts(cards=tuple(replace(card, at=(0, 9 + n)) for n, card in enumerate(gpus(*SEVERAL_GROUPS)))),
        annotations=ON_ROOT_COMPLEX,
    ),
    Case(
        name="a card's functions by two entries",
        machine="two-rtx-3090",
        parts=Parts(
            cards=(
                Card(alias="gpu-gpu1", source="0000:e1:00.0"),
                Card(alias="hostdevice-audio", source="0000:e1:00.1"),
            )
        ),
    ),
)
