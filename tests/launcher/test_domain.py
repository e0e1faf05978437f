"""Golden domains: whole manifests to whole XML, valid to libvirt's schema and to its QEMU driver.

`make test ARGS=--regenerate` writes them anew; read them in the diff.
"""

import shutil
from pathlib import Path
from typing import Any

import jinja2
import libvirt
import pytest
from jinja2 import nodes
from lxml import etree

from launcher.runtime import guest
from launcher.vm.facts import Facts
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.versions import NEWER, Version, newer_elements, version_text
from program.errors import Refusal, UserError
from tests.launcher.cases import DOMAINS, REFUSED, Case, case, cases
from tests.launcher.guests import a_vm
from tests.launcher.vms import DEBIAN_12, domain_of, laid_out, read_manifest, vmi_text, without_lines, write_vmi
from tests.processes import ROOT

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
CASES = cases()
RTX_2060_CASE = case("rtx-2060")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_a_domain_is_its_golden_file(case: Case, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        case.golden.write_text(case.xml())
    assert case.golden.exists(), "missing: run make test ARGS=--regenerate, and read what it wrote"
    assert case.xml() == case.golden.read_text()


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in DOMAINS.iterdir()} == {case.name for case in CASES}


def skip_newer(case: Case, libvirt: Version) -> None:
    """Skip what needs a newer libvirt than this."""
    if case.libvirt is not None and case.libvirt > libvirt:
        pytest.skip(f"needs libvirt {version_text(case.libvirt)}, and this is {version_text(libvirt)}")


def machine_has(need: str, qemu_driver: Any) -> bool:
    """A QEMU by its name, or what its CPU and QEMU can protect a guest with: SEV, SEV-SNP, TDX."""
    if need.startswith("qemu-system-"):
        return shutil.which(need) is not None
    capabilities = etree.fromstring(qemu_driver.getDomainCapabilities(None, "x86_64"))
    if need == "SEV":  # libvirt 9.0 says it here alone, and says nothing of the others
        return capabilities.find("features/sev[@supported='yes']") is not None
    types = capabilities.iterfind("features/launchSecurity/enum[@name='sectype']/value")
    return need.lower() in {element.text for element in types}


@every_case
def test_a_golden_domain_is_valid_to_libvirts_schema(case: Case, qemu_driver: Any) -> None:
    skip_newer(case, guest.version(qemu_driver))
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    schema.assertValid(etree.fromstring(case.xml()))


@every_case
def test_a_golden_domain_is_taken_by_libvirts_qemu_driver(case: Case, qemu_driver: Any) -> None:
    skip_newer(case, guest.version(qemu_driver))
    for need in case.needs:
        if not machine_has(need, qemu_driver):
            pytest.skip(f"needs {need}")
    xml = definable(case.xml("--emulation"))
    with guest.defined(qemu_driver, xml, a_vm()) as domain:
        # Every address that we gave is kept, and none is given twice.
        ours, theirs = etree.fromstring(xml), etree.fromstring(domain.XMLDesc())
        assert addresses(ours, "hostdev") == addresses(theirs, "hostdev")
        assert addresses(ours, "controller") <= addresses(theirs, "controller")


@every_case
def test_a_golden_domain_that_needs_a_newer_libvirt_says_so(case: Case) -> None:
    newest = max((newer.since for newer in newer_elements(etree.fromstring(case.xml()))), default=None)
    assert newest == case.libvirt


def test_everything_that_needs_a_newer_libvirt_is_in_a_golden_domain() -> None:
    domains = [etree.parse(case.golden) for case in CASES if case.libvirt is not None]
    assert {newer for domain in domains for newer in newer_elements(domain.getroot())} == set(NEWER)


@pytest.mark.parametrize("refused", sorted(REFUSED.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_manifest_that_cannot_be_converted_is_refused_in_these_words(refused: Path) -> None:
    said = refused.read_text().partition("# refused: ")[2].partition("\n")[0]
    assert said, "expected a comment `# refused: ` with the whole error"
    with pytest.raises((UserError, Refusal)) as error:
        cases(refused)[0].xml()
    assert without_lines(str(error.value), refused).replace(f"{refused}: ", "") == said


def definable(xml: str) -> str:
    """The domain with QEMU's own network in place of passt, where libvirt is Debian 12's, which is built without it."""
    if libvirt.getVersion() > DEBIAN_12:
        return xml
    domain = etree.fromstring(xml)
    for interface in domain.iterfind("devices/interface"):
        for passts in [*interface.iterfind("backend"), *interface.iterfind("portForward")]:
            interface.remove(passts)
    return etree.tostring(domain, encoding="unicode")


def addresses(domain: etree._Element, element: str) -> set[tuple[int, ...]]:
    found = domain.iterfind(f"devices/{element}/address[@type='pci']")
    return {tuple(int(at.get(part, ""), 16) for part in ("bus", "slot", "function")) for at in found}


def test_32_cards_of_8_functions_have_seats_that_libvirt_takes(qemu_driver: Any, tmp_path: Path) -> None:
    gpus = [(f"gpu{number}", "example.com/card") for number in range(32)]
    value = ",".join(f"0000:{0x10 + number:02x}:00.0" for number in range(32))
    vmi = read_manifest(write_vmi(tmp_path / "vm.yaml", gpus=gpus))
    found = laid_out(vmi.spec.domain.devices.entries, {"PCI_RESOURCE_EXAMPLE_COM_CARD": value})
    xml = domain_of(vmi, found, Facts(kvm=False))
    with guest.defined(qemu_driver, xml, a_vm()) as domain:
        assert len(guest.hostdevs(domain, {})) == 32


PERIPHERALS = """\
      autoattachInputDevice: true
      autoattachVSOCK: true
      interfaces: [{name: default, model: rtl8139, passt: {}}]
      rng: {}
      sound: {name: audio, model: ac97}
      watchdog: {name: dog}
"""


@pytest.mark.parametrize("number", [1, 2, 9, 32])
def test_no_seat_moves_for_whatever_else_the_vm_has(number: int, qemu_driver: Any, tmp_path: Path) -> None:
    gpus = [(f"gpu{card}", "example.com/card") for card in range(number)]
    environ = {"PCI_RESOURCE_EXAMPLE_COM_CARD": ",".join(f"0000:{0x10 + card:02x}:00.0" for card in range(number))}
    bare = "      autoattachGraphicsDevice: false\n      autoattachMemBalloon: false\n"
    placed = []
    for more in (bare, *(f"{PERIPHERALS}      video: {{type: {model}}}\n" for model in ("vga", "virtio"))):
        path = tmp_path / "vm.yaml"
        path.write_text(vmi_text(gpus=gpus).replace("      autoattachPodInterface: false\n", more))
        if "interfaces" in more:
            path.write_text(path.read_text() + "  networks: [{name: default, pod: {}}]\n")
        vmi = read_manifest(path)
        xml = domain_of(vmi, laid_out(vmi.spec.domain.devices.entries, environ), Facts(kvm=False))
        with guest.defined(qemu_driver, definable(xml), a_vm()) as domain:
            placed.append(etree.fromstring(domain.XMLDesc()))
    ports = [addresses(domain, "controller[@model='pcie-root-port']") for domain in placed]
    assert len({frozenset(addresses(domain, "hostdev")) for domain in placed}) == 1
    # Firmware numbers buses in the order of the ports: whatever was added has its ports after the seats'.
    for added in ports[1:]:
        assert sorted(added)[:number] == sorted(ports[0])[:number]
    # Nor does the screen move, or hide behind a bridge, where firmware would take a card for the first screen.
    assert [addresses(domain, "video") for domain in placed] == [set(), {(0, 5, 0)}, {(0, 5, 0)}]


DISKS = """\
      disks:
      - {name: scsi, disk: {bus: scsi}}
      - {name: virtio, disk: {bus: virtio}}
      - {name: another, disk: {bus: virtio}}
      interfaces: [{name: default, model: e1000e, passt: {}}]
      rng: {}
      sound: {name: audio, model: ac97}
"""
VOLUMES = """\
  volumes:
  - {name: scsi, emptyDisk: {capacity: 1Gi}}
  - {name: virtio, emptyDisk: {capacity: 1Gi}}
  - {name: another, emptyDisk: {capacity: 1Gi}}
  networks: [{name: default, pod: {}}]
"""


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name.startswith(("seats-", "topology-"))])
def test_no_pinned_or_mirrored_seat_moves_for_disks_and_interfaces(name: str, qemu_driver: Any, tmp_path: Path) -> None:
    given = case(name)
    more = tmp_path / "vm.yaml"
    more.write_text(given.vm.read_text().replace("    devices:\n", f"    devices:\n{DISKS}") + VOLUMES)
    placed = []
    for vm in (given.vm, more):
        xml = definable(given.world("--emulation").xml(vm))
        with guest.defined(qemu_driver, xml, a_vm()) as domain:
            placed.append((etree.fromstring(xml), etree.fromstring(domain.XMLDesc())))
    (_, before), (ours, after) = placed
    assert ids(before, "hostdev") == ids(after, "hostdev")
    bridges = ids(ours, "controller[@type='pci']")
    assert bridges <= ids(before, "controller[@type='pci']") & ids(after, "controller[@type='pci']")
    # What libvirt adds is after the seats on bus 0, and neither in a free seat nor below an expander.
    own = {int(bridge.get("index", "")) for bridge in ours.iterfind("devices/controller[@type='pci']")}
    seats = [address for address in addresses(ours, "controller[@type='pci']") if address[0] == 0 and address[1] < 5]
    for kind in ("controller", "disk", "interface", "rng", "memballoon", "sound"):
        for address in addresses(after, kind) - addresses(ours, kind):
            assert address[0] not in own
            assert address[0] or address > max(seats, default=(0,))


def ids(domain: etree._Element, element: str) -> set[tuple[str, ...]]:
    """Of each device with an address: its index, or what of the host it is, and where."""
    found = set()
    for device in domain.iterfind(f"devices/{element}"):
        source = device.find("source/address")
        for at in device.iterfind("address[@type='pci']"):
            named = str(dict(source.attrib)) if source is not None else device.get("index", "")
            found.add((named, *(at.get(part, "") for part in ("bus", "slot", "function"))))
    return found


def test_debian_12s_libvirt_is_built_without_passt_and_later_ones_are_not(qemu_driver: Any) -> None:
    xml = case("devices-by-default").xml("--emulation")
    if libvirt.getVersion() > DEBIAN_12:
        with guest.defined(qemu_driver, xml, a_vm()) as domain:
            assert "passt" in domain.XMLDesc()
    else:
        with pytest.raises(Refusal, match="'type' in element 'backend': 'passt'"):
            guest.defined(qemu_driver, xml, a_vm()).__enter__()


def test_usb_devices_are_told_by_their_number_and_their_port(qemu_driver: Any) -> None:
    xml = definable(case("usb-devices").xml("--emulation"))
    with guest.defined(qemu_driver, xml, a_vm()) as domain:
        assert tuple(map(str, guest.hostdevs(domain, {}))) == (
            "ua-hostdevice-card: host 0000:01:00.0 -> guest 0000:01:00.0",
            "ua-usb-host-stick: host 1:3 -> guest USB port 1",
            "ua-usb-host-key: host 2:10 -> guest USB port 2",
        )


def test_libvirts_qemu_driver_would_have_refused_two_devices_on_one_address(qemu_driver: Any) -> None:
    xml = RTX_2060_CASE.xml("--emulation").replace(
        'type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x1"',
        'type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x2"',
    )
    with pytest.raises(Refusal, match="double use of PCI Address"), guest.defined(qemu_driver, xml, a_vm()):
        pass


def test_an_rtx_2060_is_one_slot_of_four_functions_behind_a_port_of_its_own() -> None:
    domain = etree.fromstring(RTX_2060_CASE.xml())
    (port,) = domain.iterfind("devices/controller[@model='pcie-root-port']")
    hostdevs = list(domain.iterfind("devices/hostdev"))
    guest_addresses = [hostdev.find("address") for hostdev in hostdevs]
    assert [hostdev.get("managed") for hostdev in hostdevs] == ["no"] * 4
    assert {(at.get("bus"), at.get("slot")) for at in guest_addresses if at is not None} == {
        (f"0x{int(port.get('index', '')):02x}", "0x00")
    }
    assert [(at.get("function"), at.get("multifunction")) for at in guest_addresses if at is not None] == [
        ("0x0", "on"),
        ("0x1", None),
        ("0x2", None),
        ("0x3", None),
    ]
    assert [alias.get("name") for hostdev in hostdevs for alias in hostdev.iterfind("alias")] == ["ua-gpu-gpu1"]


def test_a_guest_with_cpus_of_its_own_is_told_and_a_realtime_guest_has_no_performance_counters() -> None:
    features = etree.fromstring(case("realtime").xml()).find("features")
    assert features is not None
    assert [element.get("state") for element in features.iterfind("kvm/hint-dedicated")] == ["on"]
    assert [element.get("state") for element in features.iterfind("pmu")] == ["off"]


def test_nothing_in_a_manifest_can_break_out_of_its_place(tmp_path: Path) -> None:
    text = '</entry><evil a="b"/>&lt;'
    chassis = f"    chassis: {{serial: '{text}'}}\n"
    vmi = read_manifest(write_vmi(tmp_path / "vm.yaml", domain=chassis))
    domain = etree.fromstring(domain_of(vmi, Layout(), Facts()))
    assert domain.findtext("sysinfo/chassis/entry") == text
    assert domain.find(".//evil") is None


def test_a_vm_without_memory_is_refused(tmp_path: Path) -> None:
    path = write_vmi(tmp_path / "vm.yaml")
    path.write_text(path.read_text().replace("memory: {guest: 1Gi}", "memory: {}"))
    with pytest.raises(UserError, match="gives the guest no memory; expected domain"):
        domain_of(read_manifest(path), Layout(), Facts())


def test_the_template_is_a_chassis_without_control_flow() -> None:
    template = jinja2.Environment(autoescape=True).parse((ROOT / "templates" / "domain.xml.j2").read_text())
    allowed = (nodes.Output, nodes.TemplateData, nodes.Name)
    assert [node for node in template.find_all(nodes.Node) if not isinstance(node, allowed)] == []
