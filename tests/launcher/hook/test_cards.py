"""Which card an entry gets where KubeVirt took a companion for it; and who wins where KubeVirt has placed a card."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.hook.cards import corrected
from launcher.hook.kubevirt_domain import read_vmi
from launcher.hook.rewrite import Rewritten, rewritten
from launcher.vm.cards.claims import Claim, Entry, EntryKind
from pci.address import PCIAddress
from pci.host import Host
from pci.sysfs.functions import read_host
from program.errors import ProgramError
from tests.conftest import Machine
from tests.kernel import becomes
from tests.launcher.hook.domains import CASES, MIRROR, NUMA, ON_ROOT_COMPLEX, RTX_3090S, Case, gpus, sriov
from tests.launcher.hook.kubevirt import Card, Parts, domain, vmi
from tests.launcher.hook.test_rewrite import placed
from tests.processes import FIXTURES

TWO = FIXTURES / "sysfs" / "two-rtx-3090"
#: What KubeVirt takes of 0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1 for two GPUs.
OLDER = ("0000:e1:00.0", "0000:e1:00.1")
VGPU = "4b20d080-1b54-4048-85b3-a6a62d165c01"


def answer(cards: tuple[Card, ...], sent: bytes, sysfs: Path = TWO, more: str = "") -> Rewritten:
    return rewritten(domain(Parts(cards=cards, more=more)), read_vmi(sent), sysfs)


@pytest.mark.parametrize("list_", ["gpu", "hostdevice"])
def test_the_audio_of_the_first_gpu_becomes_the_second_gpu_where_there_is_one_other(list_: str) -> None:
    listed = {"gpu1": "nvidia.com/a", "gpu2": "nvidia.com/a"}
    sent = vmi(listed) if list_ == "gpu" else vmi(host_devices=listed)
    found = answer(gpus(*OLDER, list_=list_), sent)
    assert placed(found.xml) == [
        ("0000:01:00.0", "0000:02:00.0"),
        ("0000:01:00.1", "0000:02:00.1"),
        ("0000:e1:00.0", "0000:01:00.0"),
        ("0000:e1:00.1", "0000:01:00.1"),
    ]
    (warning,) = map(str, found.warnings)
    assert warning == (
        f"{list_} 'gpu2': got 0000:e1:00.1 (audio) of another entry's card, 0000:e1:00.0, from an older device plugin; "
        "it has 0000:01:00.0 instead, since only so many cards of its model are for guests"
    )


def test_it_stays_where_no_other_card_is_there_that_could_be_meant() -> None:
    found = answer(gpus("0000:01:00.0", "0000:01:00.1"), vmi(), FIXTURES / "sysfs" / "rtx-2060")
    assert [source for source, _ in placed(found.xml)] == [f"0000:01:00.{function}" for function in range(4)]
    (warning,) = found.warnings
    assert "which card is meant is not known: 0 others of its model are for guests" in warning.wrong
    assert warning.fix.startswith("expected a device plugin that writes one address a card")


@pytest.mark.parametrize(
    ("groups", "second"),
    [((80, 81, 81), OLDER[1]), ((80, 80), "0000:02:00.0"), ((80, 71), "0000:02:00.0"), ((71,), OLDER[1])],
    ids=["a card and a group of two", "a group of two", "a card and one of the first's group", "none but that"],
)
def test_cards_of_one_group_are_one_device_and_none_where_the_vm_has_one(groups: tuple[int, ...], second: str) -> None:
    gpu, audio = (read_host(TWO).functions[PCIAddress.parse(address)] for address in OLDER)
    others = [replace(gpu, address=PCIAddress(0, bus, 0, 0), iommu_group=group) for bus, group in enumerate(groups, 2)]
    functions = {function.address: function for function in (*others, gpu, audio)}
    host = Host(functions=functions, groups={}, noiommu=frozenset(), faults=())
    claims = tuple(
        Claim(entry=Entry(kind=EntryKind.GPU, name=name, wants="nvidia.com/a"), device=device, variable=None)
        for name, device in (("gpu1", gpu.address), ("gpu2", audio.address))
    )
    assert [str(claim.device) for claim in corrected(claims, host).claims] == [OLDER[0], second]


def test_a_function_that_travels_alone_is_no_card_of_an_entrys_either(copied_machine: Machine) -> None:
    sys = copied_machine(TWO.name)
    uevent = sys / f"bus/pci/devices/{OLDER[1]}/uevent"
    uevent.write_text(uevent.read_text().replace("PCI_CLASS=40300", "PCI_CLASS=60400"))
    found = answer(gpus(*OLDER), vmi({"gpu1": "nvidia.com/a", "gpu2": "nvidia.com/a"}), sys)
    assert [source for source, _ in placed(found.xml)] == ["0000:01:00.0", "0000:01:00.1", "0000:e1:00.0"]


def test_audio_with_a_resource_of_its_own_is_what_was_asked_for() -> None:
    cards = (Card(alias="gpu-gpu1", source=OLDER[0]), Card(alias="hostdevice-audio", source=OLDER[1]))
    found = answer(cards, vmi({"gpu1": "nvidia.com/a"}, {"audio": "nvidia.com/audio"}))
    assert found.warnings == ()
    assert placed(found.xml) == [("0000:e1:00.0", "0000:01:00.0"), ("0000:e1:00.1", "0000:01:00.1")]


def test_seats_are_in_the_order_of_the_vm_and_not_of_kubevirts_passes() -> None:
    """KubeVirt writes hostDevices first."""
    cards = (Card(alias="hostdevice-other", source="0000:01:00.0"), Card(alias="gpu-gpu1", source="0000:e1:00.0"))
    found = answer(cards, vmi({"gpu1": "a/b"}, {"other": "a/c"}))
    assert ("0000:e1:00.0", "0000:01:00.0") in placed(found.xml)
    assert ("0000:01:00.0", "0000:02:00.0") in placed(found.xml)


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_a_card_that_kubevirt_has_placed_stays_and_gets_its_companions_there() -> None:
    assert placed(by_name("on the root complex").answer().xml) == [
        ("0000:01:00.0", "0000:00:04.0"),
        ("0000:01:00.1", "0000:00:04.1"),
        ("0000:e1:00.0", "0000:00:03.0"),
        ("0000:e1:00.1", "0000:00:03.1"),
    ]
    case = by_name("by KubeVirt's NUMA placement")
    assert case.answer().xml.count(b"pcie-expander-bus") == 4
    assert b"ua-gpu-launcher" not in case.answer().xml


def test_a_topology_of_ours_takes_the_place_of_kubevirts_and_keeps_its_cells() -> None:
    found = by_name("numa, over KubeVirt's placement").answer()
    assert found.warnings == ()
    assert found.xml.count(b"pcie-expander-bus") == 4
    assert found.xml.count(b'alias name="ua-gpu-launcher-') == 12
    assert found.xml.count(b"<cell ") == 4


@pytest.mark.parametrize(
    ("cards", "sent", "more", "said"),
    [
        (gpus(*RTX_3090S), vmi(annotations={**ON_ROOT_COMPLEX, **NUMA}), "", "both say where cards are; leave out one"),
        (gpus(*RTX_3090S), vmi(annotations={"gpu-launcher.dev/seats": '{"x": 1}'}), "", "the domain has no card 'x'"),
        (gpus(*RTX_3090S), vmi(annotations={"gpu-launcher.dev/rom": '{"gpu1": "v/x"}'}), "", "'gpu1' has a file"),
        (gpus("0000:01:00.0", "0000:01:00.0"), vmi(), "", "and so is gpu 'gpu1': KubeVirt takes from one variable"),
        (
            (Card(alias="gpu-a", source="0000:e1:00.0"), Card(alias="gpu-a", source="0000:01:00.0")),
            vmi({"a": "nvidia.com/a"}),
            "",
            (
                "gpu 'a': has 0000:e1:00.0, and another entry of its name has 0000:01:00.0: KubeVirt takes the alias "
                "from the name, and libvirt takes each alias once; rename one of them"
            ),
        ),
        (
            (Card(alias="gpu-a", source="0000:e1:00.0"), Card(alias="gpu-a", source=VGPU)),
            vmi({"a": "nvidia.com/a"}),
            "",
            f"gpu 'a': has 0000:e1:00.0, and another entry of its name has {VGPU}",
        ),
        (
            (Card(alias="gpu-a", source="0000:e1:00.0"), Card(alias="hostdevice-a", source="0000:01:00.0")),
            vmi({"a": "x/a"}, {"a": "x/b"}, {"gpu-launcher.dev/seats": '{"a": 3}'}),
            "",
            "gpu-launcher.dev/seats: a gpu and a hostDevice are called 'a'; rename one of them",
        ),
        (
            gpus(*RTX_3090S),
            vmi(),
            sriov("0000:5e:00.2", '<address type="pci" domain="0" bus="0" slot="0x01" function="0x0"/>'),
            "both at 0000:00:01.0 of the guest's; expected no pciAddress from 0000:00:01.0",
        ),
        (
            gpus(*RTX_3090S),
            vmi(annotations=MIRROR),
            '<controller type="pci" index="1" model="pcie-expander-bus"><target busNr="254"/></controller>',
            "KubeVirt has placed other devices by NUMA node",
        ),
        (
            gpus(*RTX_3090S),
            vmi(),
            '<controller type="pci" index="3"><address type="pci" bus="12" slot="0" function="0"/></controller>',
            "has no bus 12, and a device there; expected a controller for it",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_whole(cards: tuple[Card, ...], sent: bytes, more: str, said: str) -> None:
    with pytest.raises(ProgramError) as error:
        answer(cards, sent, more=more)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("written", "hostile", "said"),
    [
        (b'sockets="1"', b'sockets="x"', "the domain's <topology>: has sockets='x'; expected a number from 1 on"),
        (b'sockets="1"', b'sockets="4294967296"', "has 17179869184 vCPUs; expected at most 4096"),
        (b"</domain>", b"<vcpu>x</vcpu></domain>", "the domain's <vcpu>: has text='x'; expected a number from 1 on"),
        (
            b"<memory ",
            b"<memory>%b</memory><memory " % (b"9" * 5000),
            "the domain's <memory>: is no size; expected a nu",
        ),
    ],
)
def test_a_number_that_is_none_or_endless_is_refused_by_its_element(written: bytes, hostile: bytes, said: str) -> None:
    case = by_name("numa")
    xml = re.sub(b"<vcpu.*?</vcpu>", b"", case.xml)
    if b"<vcpu>" in hostile:
        xml = re.sub(b"<topology [^>]*/>", b"", xml)
    assert written in xml
    with pytest.raises(ProgramError) as error:
        case.answer(xml.replace(written, hostile, 1))
    assert said in str(error.value)


def test_the_gpu_of_a_grace_superchip_stays_behind_kubevirts_smmu_and_is_refused_without_one(
    copied_machine: Machine,
) -> None:
    sys = copied_machine(TWO.name)
    becomes(sys, "0000:01:00.0", "10de:2342")
    placed_card = (Card(alias="gpu-gpu1", source="0000:01:00.0", at=(2, 0)),)
    bridges = (
        '<controller type="pci" index="1" model="pcie-expander-bus"><target busNr="254"/></controller>'
        '<controller type="pci" index="2" model="pcie-root-port">'
        '<address type="pci" domain="0x0000" bus="1" slot="0x00" function="0x0"/></controller>'
    )
    smmu = '<iommu model="smmuv3"><driver pciBus="1" accel="on" ats="on"/></iommu>'
    found = answer(placed_card, vmi(), sys, bridges + smmu)
    assert ("0000:01:00.0", "0000:02:00.0") in placed(found.xml)
    assert b'<iommu model="smmuv3">' in found.xml
    is_grace = "gpu 'gpu1': 0000:01:00.0 (VGA) is the GPU of a Grace superchip (10de:2342), "
    with pytest.raises(ProgramError, match=re.escape(f"{is_grace}and the domain has no SMMUv3 for it; turn on Kube")):
        answer(placed_card, vmi(), sys, bridges)
    with pytest.raises(ProgramError, match=re.escape(f"{is_grace}which stays behind the SMMUv3 where KubeVirt has")):
        answer(placed_card, vmi(annotations=NUMA), sys, bridges + smmu)


def test_cards_that_need_the_hole_that_an_annotation_takes_away_are_refused() -> None:
    case = by_name("large BARs")
    no_hole = '<controller type="pci" index="0" model="pcie-root"><pcihole64 unit="KiB">0</pcihole64></controller>'
    case = replace(case, parts=replace(case.parts, more=no_hole))
    with pytest.raises(ProgramError, match=r"kubevirt\.io/disablePCIHole64 takes away the 64-bit hole"):
        case.answer()
