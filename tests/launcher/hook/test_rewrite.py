"""The hook's answers: cards whole and on their seats, and nothing else touched, however often KubeVirt asks."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import libvirt
import pytest
from lxml import etree

from launcher.hook.kubevirt_domain import alias_of, guest_address_of, source_of
from launcher.hook.preview import before_libvirt
from launcher.runtime import guest
from launcher.vm.versions import version_text
from tests.launcher.hook.domains import CASES, Case
from tests.launcher.hook.kubevirt import free_ports, one, panics, refused_beside_plugins, started, understood
from tests.launcher.test_domain import SCHEMA

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

#: libvirt adds none where KubeVirt has bridges of its own; KubeVirt none above bus 31, which mirrored switches reach.
MORE_FREE_PORTS = {"numa, over KubeVirt's placement": 1, "mirror": -3, "mirror, memory of hugepages": -3}


@every_case
def test_the_answer_to_an_answer_is_itself(case: Case) -> None:
    answer = case.answer()
    assert answer.xml != case.xml
    assert case.answer(answer.xml) == answer


@every_case
@pytest.mark.parametrize("knows_targets", [True, False])
def test_what_kubevirt_forgets_between_two_defines_comes_back(case: Case, knows_targets: bool) -> None:
    """Of its own elements, it writes those anew that it does not know."""
    first = case.answer().xml
    kept = understood(first, knows_targets=knows_targets)
    if not knows_targets and case.parts.is_placed_by_numa_node:
        pytest.skip("a KubeVirt that places by NUMA node knows targets")
    again = case.answer(kept).xml
    assert devices(again) - devices(kept) == devices(first) - devices(kept)
    assert case.answer(again).xml == again


def devices(xml: bytes) -> Counter[str]:
    """The domain's elements, each in its canonical form, with everything but the order of attributes and children."""
    root = etree.fromstring(xml)
    parents = (root, *root.iterfind("devices"), *root.iterfind("cpu"))
    return Counter(canonical(child) for parent in parents for child in parent if child.tag not in ("devices", "cpu"))


def canonical(element: etree._Element) -> str:
    children = sorted(canonical(child) for child in element)
    return f"{element.tag!s} {sorted(element.attrib.items())} {(element.text or '').strip()} {children}"


@every_case
def test_nothing_that_is_not_ours_is_touched(case: Case) -> None:
    before, after = others(case.xml), others(case.answer().xml)
    if case.name == "numa, over KubeVirt's placement":
        gone = {key for key in before if "pcie-" in key}
        assert sum(before[key] for key in gone) == 12
        before = Counter({key: count for key, count in before.items() if key not in gone})
    assert after == before


@every_case
def test_the_answer_can_be_converted_where_the_cluster_has_plugins(case: Case) -> None:
    """SR-IOV's network cards too: KubeVirt converts the whole domain, or nothing."""
    assert refused_beside_plugins(case.xml)
    assert refused_beside_plugins(case.answer().xml) == []


def others(xml: bytes) -> Counter[str]:
    """The domain's elements but for what is the hook's: its controllers, companions, a card's and the screen's
    address, a <hostdev>'s mode, what EFI and the guest's CPU are told of a hole, and the cells that a topology asks
    for."""
    root = etree.fromstring(xml)
    for hostdev in root.iterfind("devices/hostdev[@mode='subsystem']"):
        del hostdev.attrib["mode"]  # which libvirt takes for the same
    devices, cpu = one(root, "devices"), one(root, "cpu")
    for device in list(devices):
        alias = alias_of(device)
        is_ours = alias.startswith(("ua-gpu-launcher-", "ua-companion-"))
        if is_ours or (device.get("model") == "pcie-root" and device.find("pcihole64") is not None):
            devices.remove(device)
        elif device.tag == "video" or alias.startswith(("ua-gpu-", "ua-hostdevice-", "ua-dra-")):
            for address in device.findall("address"):
                device.remove(address)
    for argument in root.iter("{http://libvirt.org/schemas/domain/qemu/1.0}arg"):
        if "opt/ovmf/" in argument.get("value", ""):
            parent, flag = argument.getparent(), argument.getprevious()
            assert parent is not None
            assert flag is not None
            parent.remove(argument)
            parent.remove(flag)
    if root.find("memoryBacking/allocation") is None:
        for parent, tag in ((cpu, "numa"), (cpu, "maxphysaddr"), (root, "numatune")):
            for element in parent.findall(tag):
                parent.remove(element)
    parents = (root, devices, cpu)
    return Counter(canonical(child) for parent in parents for child in parent if child not in parents)


@every_case
def test_the_answer_is_valid_to_libvirts_schema(case: Case, qemu_driver: Any) -> None:
    skip_newer(case, qemu_driver)
    root = etree.fromstring(case.answer().xml)
    # What KubeVirt writes beside the schema: it has libvirt validate nothing.
    for empty in [each for each in root.iterfind("sysinfo/*") if len(each) == 0]:
        one(root, "sysinfo").remove(empty)
    for hostdev in root.iterfind("devices/hostdev[alias]"):
        one(hostdev, "source/address").attrib.pop("type", None)
        # libxml2, unlike the schema, takes <driver> beside <source> alone; KubeVirt writes it last.
        for driver in hostdev.findall("driver"):
            hostdev.insert(0, driver)
    etree.RelaxNG(etree.parse(SCHEMA)).assertValid(root)


@every_case
@pytest.mark.parametrize("knows_targets", [True, False])
def test_libvirt_keeps_every_address_through_kubevirts_three_defines(
    case: Case, knows_targets: bool, qemu_driver: Any
) -> None:
    skip_newer(case, qemu_driver)
    case = case.emulated()
    seen = []
    for answer, theirs in start_of(case, qemu_driver, knows_targets=knows_targets):
        assert placed(answer) == placed(theirs.encode())
        seen.append((placed(answer), ours(answer)))
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert panics(theirs) == []


@every_case
@pytest.mark.parametrize("placeholders", [0, 3])
def test_as_many_ports_are_free_as_without_the_hook(case: Case, placeholders: int, qemu_driver: Any) -> None:
    skip_newer(case, qemu_driver)
    case = case.emulated()
    *_, (_, hooked) = start_of(case, qemu_driver, placeholders=placeholders)
    *_, (_, alone) = started(case.xml, bytes, partial(defined, qemu_driver), placeholders=placeholders)
    assert len(free_ports(hooked)) - len(free_ports(alone)) == MORE_FREE_PORTS.get(case.name, 0)


@every_case
@pytest.mark.parametrize("has_hook", [False, True])
def test_explain_foretells_the_next_start_by_what_virsh_dumps(case: Case, has_hook: bool, qemu_driver: Any) -> None:
    skip_newer(case, qemu_driver)
    case = case.emulated()
    hook = (lambda xml: case.answer(xml).xml) if has_hook else bytes
    *_, (_, dumped) = started(case.xml, hook, partial(defined, qemu_driver))
    first, foretold = case.answer(), case.answer(before_libvirt(dumped.encode()))
    assert (foretold.cards, foretold.warnings) == (first.cards, first.warnings)
    assert placed(foretold.xml) == placed(first.xml)


def start_of(case: Case, qemu_driver: Any, **flags: Any) -> Iterator[tuple[bytes, str]]:
    return started(case.xml, lambda xml: case.answer(xml).xml, partial(defined, qemu_driver), **flags)


def defined(qemu_driver: Any, xml: bytes) -> str:
    """What libvirt makes of a domain, as KubeVirt defines it and reads it back."""
    domain = qemu_driver.defineXML(xml.decode())
    try:
        return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
    finally:
        domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)


def placed(xml: bytes) -> list[tuple[str, str]]:
    """Every function of a card, and where it is in the guest."""
    root = etree.fromstring(xml)
    for nic in root.xpath("devices/hostdev[alias[starts-with(@name, 'ua-sriov-')]]"):
        one(root, "devices").remove(nic)
    hostdevs = [(source_of(each), guest_address_of(each)) for each in root.iterfind("devices/hostdev")]
    return sorted((str(source), str(at)) for source, at in hostdevs if at is not None)


def ours(xml: bytes) -> Counter[str]:
    """Our controllers."""
    controllers = etree.fromstring(xml).iterfind("devices/controller")
    return Counter(canonical(each) for each in controllers if alias_of(each).startswith("ua-gpu-launcher-"))


def skip_newer(case: Case, qemu_driver: Any) -> None:
    if case.libvirt > guest.version(qemu_driver):
        pytest.skip(f"needs libvirt {version_text(case.libvirt)}")
