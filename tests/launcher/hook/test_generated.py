"""Domains that nobody wrote, on recorded machines: whatever the answer is, it is its own answer, no address is there
twice, and nothing is lost. `--thorough` has five thousand of them."""

import json
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from lxml import etree

from launcher.hook.kubevirt_domain import VMIRequest, guest_address_of, read_vmi, source_of
from launcher.hook.rewrite import rewritten
from pci.address import PCIAddress
from pci.functions import is_gpu
from pci.host import Host
from pci.sysfs.functions import read_host
from program.errors import ProgramError
from tests.launcher.hook.domains import VGPU, sriov
from tests.launcher.hook.kubevirt import Card, Parts, domain, understood, vmi
from tests.launcher.hook.test_rewrite import others
from tests.processes import FIXTURES

MACHINES = {
    name: read_host(FIXTURES / "sysfs" / name)
    for name in (
        *("rtx-2060", "two-rtx-3090", "two-gpus-one-group", "hgx-a100-8-gpu", "lab-modern", "two-h100"),
        "cards-of-several-groups",
    )
}
_AT_ONCE = 250


@dataclass(frozen=True)
class Generated:
    machine: str
    xml: bytes
    vmi: bytes

    def answer(self, xml: bytes) -> bytes:
        return rewritten(xml, self.asked, FIXTURES / "sysfs" / self.machine).xml

    @property
    def asked(self) -> VMIRequest:
        return read_vmi(self.vmi)


def generated(random: Random) -> Generated:
    machine = random.choice(sorted(MACHINES))
    cards, names = cards_of(MACHINES[machine], random)
    parts = Parts(
        cards=cards,
        disks=random.choice((0, 1, 3, 20)),
        nics=random.choice((0, 1, 4)),
        more="".join(more(random)),
        efi=random.random() < 0.5,
        memory=random.choice((1, 8, 960)) << 30,
        cpu='<topology sockets="1" cores="4" threads="1"/>' + random.choice(("", "", _CELL)),
        head="<memoryBacking><hugepages/></memoryBacking>" * random.choice((0, 0, 1)),
    )
    listed = {kind: {name: "a/b" for k, name in names if k == kind} for kind in ("gpu", "hostdevice")}
    sent = vmi(listed["gpu"], listed["hostdevice"], annotations(names, random))
    return Generated(machine, domain(parts), sent)


_CELL = '<numa><cell id="0" cpus="0-3" memory="1048576" unit="KiB"/></numa>'


def cards_of(host: Host, random: Random) -> tuple[tuple[Card, ...], list[tuple[str, str]]]:
    """Entries with any functions of the machine's, now and then one that is not there or is there already."""
    functions = [str(address) for address, function in host.functions.items() if not function.is_bridge]
    chosen = random.sample(functions, k=min(len(functions), random.choice((0, 1, 2, 2, 4, 8))))
    if random.random() < 0.05:
        chosen.append(random.choice((*chosen, "0000:77:00.0")))
    if random.random() < 0.1:
        chosen.append(VGPU)
    cards, names = [], []
    placed = random.random() < 0.2
    for number, source in enumerate(chosen):
        kind, dra = random.choice(("gpu", "hostdevice")), random.choice(("", "", "dra-"))
        at = (0, 7 + number) if placed and number < 20 and source != VGPU else None
        cards.append(Card(alias=f"{dra}{kind}-d{number}", source=source, at=at))
        names.append((kind, f"d{number}"))
    return tuple(cards), names


def more(random: Random) -> list[str]:
    """Devices with addresses of their own, and bridges that nobody needs."""
    made = [sriov("0000:5e:00.2")] * random.choice((0, 0, 1))
    places = ((0, 1), (0, 5), (0, 16), (0, 17), (1, 0), (2, 0), (3, 0), (9, 0))
    for number, (bus, slot) in enumerate(random.sample(places, k=random.choice((0, 0, 0, 1, 3)))):
        at = f'<address type="pci" domain="0x0000" bus="0x{bus:02x}" slot="0x{slot:02x}" function="0x0"/>'
        made.append(f'<watchdog model="i6300esb" action="reset"><alias name="ua-w{number}"/>{at}</watchdog>')
    if random.random() < 0.3:
        made += [f'<controller type="pci" index="{index}" model="pcie-root-port"/>' for index in (1, 2, 5)]
    return made


def annotations(names: list[tuple[str, str]], random: Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if (topology := random.choice((None, None, "none", "numa", "mirror"))) is not None:
        made["gpu-launcher.dev/topology"] = topology
    if names and topology != "mirror" and random.random() < 0.3:
        pinned = random.sample([name for _, name in names], k=random.randint(1, len(names)))
        made["gpu-launcher.dev/seats"] = json.dumps(
            dict(zip(pinned, random.sample(range(12), k=len(pinned)), strict=True))
        )
    if random.random() < 0.1:
        made["gpu-launcher.dev/companions"] = "none"
    if names and random.random() < 0.1:
        made["gpu-launcher.dev/rom"] = json.dumps({names[0][1]: "off"})
    return made


@pytest.mark.parametrize("part", range(20))
def test_an_answer_is_its_own_answer_has_no_address_twice_and_loses_nothing(
    part: int, request: pytest.FixtureRequest
) -> None:
    count = _AT_ONCE if request.config.getoption("--thorough") else 5
    random, outcomes = Random(part), Counter[str]()
    for _ in range(count):
        case = generated(random)
        try:
            answer = case.answer(case.xml)
        except ProgramError:  # in one line, and with nothing changed: test_serving.py
            outcomes["refused"] += 1
            continue
        check(case, answer)
        outcomes["unchanged" if answer == case.xml else "changed"] += 1
    assert count == 5 or outcomes["changed"] > count / 3


NASTY = ("", "x", "-1", "0", "\u0663", "9" * 5000, "0x", "1_0", "0-", "4294967296", "256", "33")


def test_a_domain_with_anything_broken_is_answered_or_refused(request: pytest.FixtureRequest) -> None:
    random = Random(1)
    for _ in range(5000 if request.config.getoption("--thorough") else 150):
        case = generated(random)
        root = etree.fromstring(random.choice((case.xml, answered(case))))
        for element in random.sample(list(root.iter("*")), k=3):
            match random.randrange(4):
                case 0 | 1 if element.attrib:
                    element.set(random.choice(sorted(map(str, element.attrib))), random.choice(NASTY))
                case 2:
                    element.text = random.choice(NASTY)
                case _ if (parent := element.getparent()) is not None:
                    random.choice((parent.remove, lambda each, parent=parent: parent.append(deepcopy(each))))(element)
        with suppress(ProgramError):
            case.answer(etree.tostring(root))


def answered(case: Generated) -> bytes:
    try:
        return case.answer(case.xml)
    except ProgramError:
        return case.xml


def check(case: Generated, answer: bytes) -> None:
    assert case.answer(answer) == answer
    kept = understood(answer, knows_targets=False)
    assert case.answer(case.answer(kept)) == case.answer(kept)
    before, after = etree.fromstring(case.xml), etree.fromstring(answer)
    taken = [address for device in after.iterfind("devices/*") if (address := guest_address_of(device)) is not None]
    assert len(taken) == len(set(taken))
    passed, passes = sources(before), sources(after)
    for address in passed - passes:
        assert was_anothers(address, passed, case), f"{address} is lost"
    assert passes.total() >= passed.total()
    assert max(passes.values(), default=0) <= 1
    assert not lost(case.xml, answer), lost(case.xml, answer)


def was_anothers(address: PCIAddress, passed: Counter[PCIAddress], case: Generated) -> bool:
    """Whether an older plugin's variable gave a GPU's companion, among what was `passed`, to an entry for a GPU, which
    has got its own, of a VM that wants no companions."""
    functions = MACHINES[case.machine].functions
    has_its_gpu = any(other.shares_slot(address) and is_gpu(functions[other]) for other in passed if other != address)
    return case.asked.annotations.companions == "none" and not is_gpu(functions[address]) and has_its_gpu


def sources(root: etree._Element) -> Counter[PCIAddress]:
    found = (source_of(hostdev) for hostdev in root.iterfind("devices/hostdev"))
    return Counter(source for source in found if source is not None)


def lost(before: bytes, after: bytes) -> Counter[str]:
    """What is gone, but for bridges of KubeVirt's that a card has left, and an option ROM that was asked for."""
    gone = others(before) - others(after)
    return Counter({key: count for key, count in gone.items() if "pcie-root-port" not in key and "hostdev" not in key})
