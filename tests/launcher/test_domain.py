"""Golden domains: whole manifests to whole XML, valid to libvirt's schema and to its QEMU driver.

`make test ARGS=--regenerate` writes them anew; read them in the diff.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import nodes
from lxml import etree

from launcher import guest
from launcher.domain import domain_xml
from launcher.errors import Refusal, UserError
from launcher.manifest import read_manifest
from pci.sysfs import read_host
from tests.launcher.vms import RTX_2060_VARIABLE, RTX_3090_VARIABLE, devices, seats, write_vmi
from tests.processes import FIXTURES, ROOT

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
A100_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA100_A100_SXM4_40GB"


@dataclass(frozen=True)
class Case:
    """A manifest of fixtures/vms, a pod's variables, a machine or none; the golden file has the case's name."""

    name: str
    vm: str
    environ: dict[str, str] = field(default_factory=dict)
    machine: str | None = None

    def xml(self, **options: Any) -> str:
        vmi = read_manifest(FIXTURES / "vms" / f"{self.vm}.yaml")
        host = read_host(FIXTURES / "sysfs" / self.machine) if self.machine else None
        return domain_xml(vmi, seats(vmi.spec.domain.devices, self.environ, host), **options)


HGX = "0000:07:00.0,0000:0f:00.0,0000:47:00.0,0000:4e:00.0,0000:87:00.0,0000:90:00.0,0000:b7:00.0,0000:bd:00.0"

CASES = (
    Case("seed-001", "seed-001", {RTX_2060_VARIABLE: "0000:86:00.0"}),
    Case("seed-001-two-gpus", "seed-001-two-gpus", {RTX_2060_VARIABLE: "0000:86:00.0,0000:af:00.0"}),
    Case(
        "seed-000-older-dialect",
        "two-gpus",
        {RTX_3090_VARIABLE: "0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1"},
        "two-rtx-3090",
    ),
    Case("rtx-2060", "one-gpu", {RTX_2060_VARIABLE: "0000:01:00.0"}, "rtx-2060"),
    Case("rtx-2060-without-sysfs", "one-gpu", {RTX_2060_VARIABLE: "0000:01:00.0"}),
    Case("hgx-a100-8-gpu", "eight-gpus", {A100_VARIABLE: HGX}, "hgx-a100-8-gpu"),
    Case(
        "mixed-devices",
        "mixed-devices",
        {
            "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
            "PCI_RESOURCE_EXAMPLE_COM_BOCHS": "0000:41:00.0",
        },
        "two-cards-nested-vfio",
    ),
    Case("no-devices", "no-devices"),
    Case("kernel-boot", "kernel-boot"),
)
RTX_2060_CASE = next(case for case in CASES if case.name == "rtx-2060")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="session")
def qemu_driver(embedded_uri: str) -> Iterator[Any]:
    """Libvirt's QEMU driver, which checks addresses; the test driver takes two devices on one."""
    with guest.connected(embedded_uri, guest.Events()) as connection:
        yield connection


@every_case
def test_a_domain_is_its_golden_file(case: Case, request: pytest.FixtureRequest) -> None:
    golden = FIXTURES / "domains" / f"{case.name}.xml"
    if request.config.getoption("--regenerate"):
        golden.write_text(case.xml())
    assert golden.exists(), "missing: run make test ARGS=--regenerate, and read what it wrote"
    assert case.xml() == golden.read_text()


def test_every_golden_file_has_a_case_and_every_manifest_is_used() -> None:
    assert {path.stem for path in (FIXTURES / "domains").iterdir()} == {case.name for case in CASES}
    assert {path.stem for path in (FIXTURES / "vms").iterdir()} == {case.vm for case in CASES}


@every_case
def test_a_golden_domain_is_valid_to_libvirts_schema(case: Case) -> None:
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    schema.assertValid(etree.fromstring(case.xml()))


@every_case
def test_a_golden_domain_is_taken_by_libvirts_qemu_driver(case: Case, qemu_driver: Any) -> None:
    xml = case.xml(emulation=True)
    with guest.defined(qemu_driver, xml, guest.Events()) as domain:
        # Every address that we gave is kept, and none is given twice.
        ours, theirs = etree.fromstring(xml), etree.fromstring(domain.XMLDesc())
        assert addresses(ours, "hostdev") == addresses(theirs, "hostdev")
        assert addresses(ours, "controller") <= addresses(theirs, "controller")


def addresses(domain: etree._Element, element: str) -> set[tuple[int, ...]]:
    found = domain.iterfind(f"devices/{element}/address[@type='pci']")
    return {tuple(int(at.get(part, ""), 16) for part in ("bus", "slot", "function")) for at in found}


def test_32_cards_of_8_functions_have_seats_that_libvirt_takes(qemu_driver: Any, tmp_path: Path) -> None:
    wanted = devices(gpus=[(f"gpu{number}", "example.com/card") for number in range(32)])
    value = ",".join(f"0000:{0x10 + number:02x}:00.0" for number in range(32))
    vmi = read_manifest(write_vmi(tmp_path / "vm.yaml"))
    xml = domain_xml(vmi, seats(wanted, {"PCI_RESOURCE_EXAMPLE_COM_CARD": value}), emulation=True)
    with guest.defined(qemu_driver, xml, guest.Events()) as domain:
        assert len(guest.hostdevs(domain)) == 32


def test_libvirts_qemu_driver_would_have_refused_two_devices_on_one_address(qemu_driver: Any) -> None:
    xml = RTX_2060_CASE.xml(emulation=True).replace(
        'type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x1"',
        'type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x2"',
    )
    with pytest.raises(Refusal, match="double use of PCI Address"), guest.defined(qemu_driver, xml, guest.Events()):
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


def test_nothing_in_a_manifest_can_break_out_of_its_place(tmp_path: Path) -> None:
    text = '</serial><evil a="b"/>&lt;'
    firmware = f"    firmware: {{serial: '{text}'}}\n"
    vmi = read_manifest(write_vmi(tmp_path / "vm.yaml", domain=firmware))
    domain = etree.fromstring(domain_xml(vmi, ()))
    assert domain.findtext("sysinfo/system/entry") == text
    assert domain.find(".//evil") is None


def test_a_vm_without_memory_is_refused(tmp_path: Path) -> None:
    path = write_vmi(tmp_path / "vm.yaml")
    path.write_text(path.read_text().replace("memory: {guest: 1Gi}", "memory: {}"))
    with pytest.raises(UserError, match="gives the guest no memory; expected domain"):
        domain_xml(read_manifest(path), ())


def test_the_template_is_a_chassis_without_control_flow() -> None:
    template = jinja2.Environment(autoescape=True).parse((ROOT / "templates" / "domain.xml.j2").read_text())
    allowed = (nodes.Output, nodes.TemplateData, nodes.Name)
    assert [node for node in template.find_all(nodes.Node) if not isinstance(node, allowed)] == []
