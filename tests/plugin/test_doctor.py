import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pci.sysfs.functions import read_host
from pci.sysfs.platform import read_platform
from pci.sysfs.record import record
from plugin.cards.config import Config, DeadlyResets, Groups, Rule
from plugin.cards.names import PCIIDs
from plugin.doctor import examine
from plugin.doctor.finding import NODE, Check, NodeFinding
from program.finding import worst
from program.problem import Problem, Severity
from tests.compose import (
    RTX_2060,
    SYSFS,
    Function,
    Platform,
    bars,
    card,
    compose,
    compose_platform,
    desktop,
    look_closely,
)
from tests.conftest import Command, Machine
from tests.kernel import aer, becomes, bind, make_nodes, platform_device
from tests.processes import FIXTURES
from tests.snapshots import look_at

GPU, SCREEN = "0000:01:00.0", "0000:00:02.0"
MIB = 2**20


@dataclass(frozen=True)
class Node:
    sys: Path
    proc: Path
    dev: Path

    @property
    def flags(self) -> tuple[str | Path, ...]:
        where = ("--sysfs", self.sys, "--proc", self.proc, "--dev", self.dev)
        return ("doctor", *where, "--pci-ids", FIXTURES / "pci.ids")


NodeOf = Callable[..., Node]
Examine = Callable[..., tuple[NodeFinding, ...]]


@pytest.fixture
def node(copied_machine: Machine, tmp_path: Path) -> NodeOf:
    """A copy of a desktop in all its details: it has seen the processor, and its screen is on the processor's GPU."""

    def node(name: str = "rtx-2060", platform: Platform | None = None) -> Node:
        sys = copied_machine(name)
        for address in map(str, read_host(sys).functions):
            look_closely(sys, address, power_state="D0", resource=bars((0xA0000000, 16 * 1024)), numa_node="0")
            look_closely(sys, address, reset_method="pm")
        look_closely(sys, GPU, power_state="D3hot", reset_method="flr bus", boot_vga="0")
        look_closely(sys, GPU, resource=bars((0xA3000000, 16 * MIB), (0x4000000000, 256 * MIB), None))
        look_closely(sys, SCREEN, boot_vga="1")
        compose_platform(sys, tmp_path / "proc", platform or Platform())
        return Node(sys, tmp_path / "proc", make_nodes(sys, tmp_path / "dev"))

    return node


@pytest.fixture
def findings(pci_ids: PCIIDs) -> Examine:
    def findings(node: Node, config: Config | None = None) -> tuple[NodeFinding, ...]:
        return examine(look_at(node.sys, pci_ids, config, proc=node.proc, dev=node.dev))

    return findings


def about(found: tuple[NodeFinding, ...], check: Check, device: str | None = None) -> NodeFinding:
    (one,) = (finding for finding in found if (finding.check, finding.device) == (check, device))
    return one


def fixes(finding: NodeFinding) -> tuple[str, ...]:
    """The fix and the steps, as the page lists them."""
    return tuple(step for step in (finding.problem.fix, *finding.steps) if step)


INTEL_WITHOUT = Platform(iommus=(), chips=("IO-APIC",), command_line="quiet")


# The page


def test_the_page_of_a_machine_that_is_fine(gpu_plugin: Command, node: NodeOf) -> None:
    result = gpu_plugin(*node().flags)
    assert result.stdout == (
        """\
Errors: 0, warnings: 0, notes: 1.

note     0000:00:02.0: is the boot VGA, the node's own screen, and bound to i915
         -> if a guest is to have it: let the firmware put that on another card
            (its setup calls it primary display)

ok       devices that can be handed out: 1 of 2
ok       the IOMMU is on: Intel VT-d, units: 2, groups: 5
ok       the kernel's command line says intel_iommu=on iommu=pt
ok       interrupts are remapped
ok       drivers that give devices to VFIO: vfio-pci
ok       modules that map a guest's memory: vfio_iommu_type1
ok       ways into VFIO: /dev/vfio/vfio

  FUNCTION              DRIVER    POWER  BAR         RESETS
0000:00:02.0  CoffeeLake-S GT2 [UHD Graphics 630]
  not offered; NUMA node 0; group 2
  0000:00:02.0 (VGA)    i915      D0     0: 16 KiB   pm
0000:01:00.0  TU106 [GeForce RTX 2060 Rev. A]
  nvidia.com/TU106_GEFORCE_RTX_2060_REV__A; NUMA node 0; group 1 with
  0000:00:01.0 (PCI bridge)
  0000:01:00.0 (VGA)    vfio-pci  D3hot  1: 256 MiB  flr, bus
  0000:01:00.1 (audio)  vfio-pci  D0     0: 16 KiB   pm
  0000:01:00.2 (USB)    vfio-pci  D0     0: 16 KiB   pm
  0000:01:00.3 (UCSI)   vfio-pci  D0     0: 16 KiB   pm
"""
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_page_of_a_desktop_without_iommu_begins_with_what_to_do(gpu_plugin: Command, node: NodeOf) -> None:
    result = gpu_plugin(*node("rtx-2060-without-iommu", replace(INTEL_WITHOUT, drivers=("i915", "nouveau"))).flags)
    assert result.stdout.startswith(
        """\
Errors: 4, warnings: 0, notes: 1.

ERROR    devices that can be handed out: 0 of 2
         -> what is said of each device says why, and what to do

ERROR    the IOMMU is off, though the firmware announces it (ACPI DMAR)
         -> boot with intel_iommu=on (Intel)

ERROR    the kernel has no driver that gives devices to VFIO: the module
         vfio-pci is not loaded
         -> load it, now and at every boot
         -> modprobe vfio-pci
         -> echo vfio-pci > /etc/modules-load.d/vfio-pci.conf

ERROR    0000:01:00.0: is in no IOMMU group: no IOMMU is on
         -> boot with intel_iommu=on (Intel)

note     0000:00:02.0: is the boot VGA, """
    )
    assert result.returncode == 4


def test_the_page_of_a_card_whose_audio_is_on_snd_hda_intel(gpu_plugin: Command, node: NodeOf) -> None:
    result = gpu_plugin(*node("rtx-2060-audio-on-snd-hda-intel").flags)
    assert result.stdout.startswith(
        """\
Errors: 2, warnings: 0, notes: 1.

ERROR    devices that can be handed out: 0 of 2
         -> what is said of each device says why, and what to do

ERROR    0000:01:00.0: is in group 1, which is not viable: 0000:01:00.1 (audio)
         is bound to snd_hda_intel
         -> bind it to vfio-pci
         -> gpu-plugin bind 0000:01:00.0

note     0000:00:02.0: is the boot VGA, """
    )
    assert (
        """\
0000:01:00.0  TU106 [GeForce RTX 2060 Rev. A]
  nvidia.com/TU106_GEFORCE_RTX_2060_REV__A, unhealthy; NUMA node 0; group 1 with
  0000:00:01.0 (PCI bridge)
  0000:01:00.0 (VGA)    vfio-pci       D3hot  1: 256 MiB  flr, bus
  0000:01:00.1 (audio)  snd_hda_intel  D0     0: 16 KiB   pm
  0000:01:00.2 (USB)    vfio-pci       D0     0: 16 KiB   pm
  0000:01:00.3 (UCSI)   none           D0     0: 16 KiB   pm
"""
        in result.stdout
    )
    assert result.returncode == 4


def test_the_page_of_two_gpus_in_one_group(gpu_plugin: Command, node: NodeOf) -> None:
    result = gpu_plugin(*node("two-gpus-one-group").flags)
    for one, other in ((GPU, "0000:02:00.0"), ("0000:02:00.0", GPU)):
        assert (
            f"""\
ERROR    {one}: shares group 1 with {other}, and a guest gets a
         group whole or not at all
         -> a slot whose root port or switch has ACS gives each a group of its
            own
         -> if they may go to one guest only: groups: together in the config,
            and rules that give them one resource
"""
            in result.stdout
        )
    assert result.returncode == 4


def test_the_page_of_a_virtual_machine_without_iommu_says_unknown_and_guesses_nothing(
    gpu_plugin: Command, machine: Machine
) -> None:
    sys = machine("virtual-machine-without-iommu")
    result = gpu_plugin("doctor", "--sysfs", sys, "--pci-ids", FIXTURES / "pci.ids")
    assert result.stdout == (
        """\
Errors: 0, warnings: 0, notes: 6.

note     this node has no GPU, and no device that the config offers
         -> if it should have one, see whether lspci -nn lists it, and if not,
            its seat, its power and 'Above 4G Decoding' in the firmware
note     the IOMMU is off: no PCI function is in an IOMMU group
         -> turn on the IOMMU (VT-d, AMD-Vi, SMMU) in the firmware, and reboot
         -> boot with intel_iommu=on (Intel)
note     the kernel's command line is unknown: /proc was not looked at
         -> gpu-plugin doctor --proc DIR
note     whether the kernel has the driver vfio-pci is unknown
note     whether the modules vfio_iommu_type1 and iommufd are loaded is unknown
note     VFIO's device nodes are unknown: /dev was not looked at
         -> gpu-plugin doctor --dev DIR
"""
    )
    assert result.returncode == 0


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_the_page_fits_a_terminal_and_is_the_same_each_time(gpu_plugin: Command, machine: Machine, name: str) -> None:
    call = ("doctor", "--sysfs", machine(name), "--pci-ids", FIXTURES / "pci.ids")
    page = gpu_plugin(*call).stdout
    assert max(map(len, page.splitlines())) <= 80
    assert gpu_plugin(*call).stdout == page


def test_what_is_the_same_of_several_cards_is_said_once(gpu_plugin: Command, machine: Machine) -> None:
    page = gpu_plugin("doctor", "--sysfs", machine("hgx-a100-8-gpu"), "--pci-ids", FIXTURES / "pci.ids").stdout
    assert page.count("is an NVSwitch, offered only by a config") == 1


def test_a_warning_is_exit_code_3(gpu_plugin: Command, node: NodeOf) -> None:
    platform = Platform(command_line="intel_iommu=on pcie_acs_override=downstream,multifunction")
    assert gpu_plugin(*node(platform=platform).flags).returncode == 3


def test_a_directory_that_is_no_sysfs_is_one_line_and_exit_code_1(gpu_plugin: Command) -> None:
    result = gpu_plugin("doctor", "--sysfs", "/nowhere", "--pci-ids", FIXTURES / "pci.ids")
    assert result.stderr.startswith("gpu-plugin: /nowhere: expected a sysfs tree")
    assert (result.stdout, result.returncode) == ("", 1)


def test_there_is_a_form_for_programs(gpu_plugin: Command, node: NodeOf) -> None:
    this = node("rtx-2060-audio-on-snd-hda-intel")
    aer(this.sys, GPU, correctable=5)
    look_closely(this.sys, GPU, d3cold_allowed="1")
    result = gpu_plugin(*this.flags, "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 4
    assert found["severity"] == "error"
    assert found["findings"][0] == {
        "severity": "error",
        "subject": "the node",
        "wrong": "devices that can be handed out: 0 of 2",
        "fix": "what is said of each device says why, and what to do",
        "check": "offer",
        "device": None,
        "steps": [],
    }
    assert found["platform"] == {
        "cpuVendor": "GenuineIntel",
        "virtualMachine": False,
        "parameters": ["intel_iommu=on", "iommu=pt"],
        "iommus": ["dmar0", "dmar1"],
        "iommuTables": ["DMAR"],
        "interruptRemapping": True,
        "unsafeInterrupts": {"vfio_iommu_type1": False},
        "noIOMMUMode": False,
        "memlock": None,
    }
    device = found["devices"][1]
    assert (device["id"], device["iommuGroup"], device["numaNode"]) == (GPU, 1, 0)
    assert device["reason"]["wrong"].startswith("is in group 1, which is not viable")
    assert device["members"] == ["0000:00:01.0", *(f"0000:01:00.{function}" for function in range(4))]
    assert device["functions"][0] == {
        "address": GPU,
        "id": "10de:1f08",
        "class": "030000",
        "driver": "vfio-pci",
        "powerState": "D3hot",
        "bootVGA": False,
        "resetMethods": ["flr", "bus"],
        "d3coldAllowed": True,
        "pcieErrors": {"correctable": 5, "nonfatal": 0, "fatal": 0},
        "bars": [
            {"number": 0, "bytes": 16 * MIB, "assigned": True},
            {"number": 1, "bytes": 256 * MIB, "assigned": True},
        ],
    }


# The IOMMU


@pytest.mark.parametrize(
    ("platform", "wrong", "fix"),
    [
        pytest.param(
            replace(INTEL_WITHOUT, command_line="quiet intel_iommu=off"),
            "the IOMMU is off: the kernel's command line says intel_iommu=off",
            ("take intel_iommu=off out of the kernel's command line, and reboot",),
            id="the command line turns it off",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, cpu_vendor="AuthenticAMD", tables=("APIC", "IVRS"), command_line="amd_iommu=off"),
            "the IOMMU is off: the kernel's command line says amd_iommu=off",
            ("take amd_iommu=off out of the kernel's command line, and reboot",),
            id="and AMD's",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, cpu_vendor="AuthenticAMD", tables=("APIC",), command_line="intel_iommu=off"),
            "the IOMMU is off: the firmware announces none (ACPI has neither DMAR nor IVRS)",
            ("turn on IOMMU (AMD-Vi) in the firmware, and reboot",),
            id="the other vendor's parameter is no cause",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, tables=("APIC",)),
            "the IOMMU is off: the firmware announces none (ACPI has neither DMAR nor IVRS)",
            ("turn on VT-d in the firmware, and reboot",),
            id="the firmware has none",
        ),
        pytest.param(
            INTEL_WITHOUT,
            "the IOMMU is off, though the firmware announces it (ACPI DMAR)",
            ("boot with intel_iommu=on (Intel)",),
            id="the kernel was not told",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, command_line="intel_iommu=on,sm_on"),
            "the IOMMU is off, though the firmware announces it (ACPI DMAR)",
            ("its log says why: journalctl -k --grep 'DMAR|AMD-Vi'",),
            id="the kernel was told, and failed",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, cpu_vendor="AuthenticAMD", tables=("APIC", "IVRS")),
            "the IOMMU is off, though the firmware announces it (ACPI IVRS)",
            ("its log says why: journalctl -k --grep 'DMAR|AMD-Vi'",),
            id="AMD's needs no parameter",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, tables=("APIC",), cpu_flags="fpu hypervisor"),
            "there is no IOMMU: this node is a virtual machine, and its hypervisor gives it none",
            ("to the libvirt domain of this node: <iommu model='intel'>, intremap and caching_mode on",),
            id="a virtual machine",
        ),
        pytest.param(
            replace(INTEL_WITHOUT, tables=()),
            "the IOMMU is off: no PCI function is in an IOMMU group",
            ("turn on VT-d in the firmware, and reboot", "boot with intel_iommu=on (Intel)"),
            id="a container hides the firmware's tables",
        ),
    ],
)
def test_an_iommu_that_is_off_is_turned_on_where_it_was_turned_off(
    findings: Examine, node: NodeOf, platform: Platform, wrong: str, fix: tuple[str, ...]
) -> None:
    found = about(findings(node("rtx-2060-without-iommu", platform)), Check.IOMMU)
    assert found == NodeFinding(Severity.ERROR, Problem(NODE, wrong, fix[0]), Check.IOMMU, fix[1:])


ARM = replace(INTEL_WITHOUT, tables=(), cpu_vendor="", is_arm=True)


@pytest.mark.parametrize(
    ("platform", "device_tree", "wrong", "fix"),
    [
        (ARM, False, "the IOMMU is off: no PCI function is in an IOMMU group", "turn on the SMMU in the firmware"),
        (ARM, True, "there is no IOMMU: the device tree names no SMMU", "as a Raspberry Pi, can give no guest a card"),
        (replace(ARM, iommus=("smmu3.0x4",)), False, "the IOMMU is none for PCI: the kernel has smmu3.0x4", "IORT has"),
        (replace(ARM, iommus=("5100.iommu",)), True, "the IOMMU is none for PCI: the kernel has 5100", "Raspberry Pi"),
        (
            replace(INTEL_WITHOUT, iommus=("dmar0",)),
            False,
            "the IOMMU is none for PCI: the kernel has dmar0",
            "its log",
        ),
    ],
)
def test_what_turns_an_iommu_on_depends_on_the_processor_and_on_what_the_kernel_has(
    findings: Examine, node: NodeOf, platform: Platform, device_tree: bool, wrong: str, fix: str
) -> None:
    this = node("rtx-2060-without-iommu", platform)
    if device_tree:
        (this.sys / "firmware/devicetree/base").mkdir(parents=True)
        (this.sys / "firmware/devicetree/base/compatible").write_text("raspberrypi,5-model-b\0brcm,bcm2712\0")
    found = findings(this)
    said = about(found, Check.IOMMU)
    assert said.problem.wrong.startswith(wrong)
    assert fix in said.problem.fix
    assert fixes(about(found, Check.VIABILITY, GPU)) == fixes(said)
    assert not any("intel_iommu" in step for step in fixes(said))


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        (Platform(cpu_vendor="AuthenticAMD"), ["intel_iommu=on, which has no effect on an AMD processor"]),
        (Platform(is_arm=True, command_line="intel_iommu=on amd_iommu=on"), ["intel_iommu=on, ", "amd_iommu=on, "]),
        (Platform(command_line="amd_iommu=fullflush"), ["amd_iommu=fullflush, which has no effect on an Intel"]),
        (Platform(), []),
        (Platform(cpu_vendor="CentaurHauls"), []),
    ],
)
def test_a_parameter_for_another_vendors_iommu_is_named_as_without_effect(
    findings: Examine, node: NodeOf, platform: Platform, said: list[str]
) -> None:
    notes = [
        finding.problem.wrong
        for finding in findings(node(platform=platform))
        if finding.check is Check.COMMAND_LINE and finding.severity is Severity.NOTE
    ]
    assert [words in note for words, note in zip(said, notes, strict=True)] == [True] * len(said)


def test_a_function_that_the_iommu_leaves_out_is_not_told_to_turn_it_on(findings: Examine, node: NodeOf) -> None:
    this = node()
    for path in (this.sys / "bus/pci/devices").glob("0000:01:00.*"):
        (path / "iommu_group").unlink()
        (this.sys / "kernel/iommu_groups/1/devices" / path.name).unlink()
    found = about(findings(this), Check.VIABILITY, GPU)
    assert found.problem.wrong.startswith("is in no IOMMU group, though others are")
    assert fixes(found)[0].startswith("put it into another slot")


@pytest.mark.parametrize(
    ("iommus", "said"),
    [
        (("dmar0",), "Intel VT-d, units: 1,"),
        (("ivhd0", "ivhd1"), "AMD-Vi, units: 2,"),
        (("smmu3.0x0000000005000000",), "ARM SMMU, units: 1,"),
        (("0000:00:03.0",), "of unknown kind, units: 1,"),
        ((), "of unknown kind, units: unknown,"),
    ],
)
def test_an_iommu_is_called_by_its_name(findings: Examine, node: NodeOf, iommus: tuple[str, ...], said: str) -> None:
    found = about(findings(node(platform=Platform(iommus=iommus))), Check.IOMMU)
    assert (found.severity, found.problem.wrong) == (Severity.OK, f"the IOMMU is on: {said} groups: 5")


def test_groups_that_vfio_made_up_are_no_iommu(findings: Examine, node: NodeOf) -> None:
    this = node()
    for group in (this.sys / "kernel/iommu_groups").iterdir():
        (group / "name").write_text("vfio-noiommu\n")
    assert about(findings(this), Check.IOMMU).severity is Severity.ERROR


def test_the_no_iommu_mode_is_a_danger_to_the_node(findings: Examine, node: NodeOf) -> None:
    platform = Platform(parameters={**Platform().parameters, "vfio/parameters/enable_unsafe_noiommu_mode": "Y"})
    found = about(findings(node(platform=platform)), Check.NO_IOMMU_MODE)
    assert found.severity is Severity.WARNING
    assert "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode" in fixes(found)


def test_an_acs_override_makes_groups_that_are_none(findings: Examine, node: NodeOf) -> None:
    found = about(findings(node(platform=Platform(command_line="pcie_acs_override=downstream"))), Check.ACS_OVERRIDE)
    assert found.severity is Severity.WARNING
    assert fixes(found)[0] == "take pcie_acs_override=downstream out of the kernel's command line"


def test_of_the_command_line_only_what_is_about_passthrough_is_shown(findings: Examine, node: NodeOf) -> None:
    line = "root=UUID=secret intel_iommu=on vfio-pci.ids=10de:1f08 pci=realloc"
    found = about(findings(node(platform=Platform(command_line=line))), Check.COMMAND_LINE)
    assert found.problem.wrong == "the kernel's command line says intel_iommu=on vfio-pci.ids=10de:1f08 pci=realloc"


def test_a_node_that_is_a_virtual_machine_itself_is_called_one(findings: Examine, node: NodeOf) -> None:
    found = about(findings(node(platform=Platform(cpu_flags="fpu hypervisor"))), Check.VIRTUAL_MACHINE)
    assert found.severity is Severity.NOTE


# Interrupts


UNREMAPPED = ("IO-APIC", "PCI-MSI-0000:01:00.0")
UNSAFE = {"vfio_iommu_type1/parameters/allow_unsafe_interrupts": "Y"}


@pytest.mark.parametrize(
    ("platform", "severity", "wrong", "fix"),
    [
        pytest.param(
            Platform(chips=UNREMAPPED),
            Severity.ERROR,
            "interrupts are not remapped, and VFIO gives no guest a device",
            "turn on interrupt remapping, or x2APIC, in the firmware",
            id="not remapped",
        ),
        pytest.param(
            Platform(chips=UNREMAPPED, command_line="intel_iommu=on intremap=off"),
            Severity.ERROR,
            "interrupts are not remapped, and VFIO gives no guest a device",
            "take intremap=off out of the kernel's command line, and reboot",
            id="turned off",
        ),
        pytest.param(
            Platform(chips=UNREMAPPED, cpu_flags="hypervisor"),
            Severity.ERROR,
            "interrupts are not remapped, and VFIO gives no guest a device",
            "to the libvirt domain of this node: <driver intremap='on'/> in its <iommu>",
            id="by the hypervisor",
        ),
        pytest.param(
            Platform(chips=UNREMAPPED, parameters=UNSAFE),
            Severity.WARNING,
            "interrupts are not remapped, and allow_unsafe_interrupts of vfio_iommu_type1 is on: "
            "a guest can raise any interrupt of the node",
            "turn on interrupt remapping, or x2APIC, in the firmware",
            id="not remapped, and allowed",
        ),
        pytest.param(
            Platform(chips=("ITS-MSI",)),
            Severity.NOTE,
            "whether interrupts are remapped is unknown",
            None,
            id="ARM",
        ),
        pytest.param(
            Platform(chips=(), parameters=UNSAFE),
            Severity.WARNING,
            "whether interrupts are remapped is unknown, and allow_unsafe_interrupts of vfio_iommu_type1 is on: "
            "a guest might raise any interrupt of the node",
            "take allow_unsafe_interrupts out of /etc/modprobe.d and the kernel's command line",
            id="unknown, and allowed",
        ),
    ],
)
def test_interrupts_have_to_be_remapped(
    findings: Examine, node: NodeOf, platform: Platform, severity: Severity, wrong: str, fix: str | None
) -> None:
    found = about(findings(node(platform=platform)), Check.INTERRUPTS)
    assert (found.severity, found.problem.wrong) == (severity, wrong)
    assert (found.problem.fix or None) == fix


def test_unsafe_interrupts_are_needless_where_they_are_remapped(findings: Examine, node: NodeOf) -> None:
    found = [
        finding for finding in findings(node(platform=Platform(parameters=UNSAFE))) if "unsafe" in finding.problem.wrong
    ]
    assert [(finding.severity, finding.check) for finding in found] == [(Severity.NOTE, Check.INTERRUPTS)]


def test_without_iommu_nothing_is_said_of_interrupts(findings: Examine, node: NodeOf) -> None:
    found = findings(node("rtx-2060-without-iommu", INTEL_WITHOUT))
    assert Check.INTERRUPTS not in {finding.check for finding in found}


# VFIO


def test_a_kernel_without_vfio_pci_is_told_to_load_it(findings: Examine, node: NodeOf) -> None:
    platform = replace(INTEL_WITHOUT, drivers=("i915", "nouveau"), parameters={})
    found = findings(node("rtx-2060-without-iommu", platform))
    assert about(found, Check.VFIO_DRIVER).steps[0] == "modprobe vfio-pci"
    assert about(found, Check.VFIO_IOMMU).steps[0] == "modprobe vfio_iommu_type1"
    assert {about(found, check).severity for check in (Check.VFIO_DRIVER, Check.VFIO_IOMMU)} == {Severity.ERROR}


def test_a_variant_driver_or_iommufd_will_do(findings: Examine, node: NodeOf) -> None:
    platform = replace(
        INTEL_WITHOUT,
        drivers=("nvgrace_gpu_vfio_pci",),
        parameters={"iommufd/parameters/allow_unsafe_interrupts": "N"},
    )
    found = findings(node("rtx-2060-without-iommu", platform))
    assert about(found, Check.VFIO_DRIVER).problem.wrong.endswith(": nvgrace_gpu_vfio_pci")
    assert about(found, Check.VFIO_IOMMU).problem.wrong.endswith(": iommufd")


def test_without_device_nodes_there_is_no_way_into_vfio(findings: Examine, node: NodeOf, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = findings(replace(node(), dev=tmp_path / "empty"))
    assert about(found, Check.DEVICE_NODES).severity is Severity.ERROR
    assert "has no way into VFIO" in about(found, Check.VIABILITY, GPU).problem.wrong


# Devices


@pytest.mark.parametrize(
    ("processes", "severity", "said"),
    [
        ({"1": ("systemd", "65536"), "7": ("containerd", "unlimited")}, Severity.OK, "without a limit, as containerd"),
        ({"7": ("containerd-shim", "unlimited"), "8": ("crio", "8388608")}, Severity.NOTE, "8 MiB of memory, as crio"),
        ({"1": ("gpu-plugin", "65536")}, Severity.NOTE, "may lock 0.0625 MiB of memory, as gpu-plugin may"),
    ],
)  # fmt: skip
def test_what_containers_may_lock_is_said_as_their_runtime_or_the_plugins_container_has_it(
    findings: Examine, node: NodeOf, processes: dict[str, tuple[str, str]], severity: Severity, said: str
) -> None:
    this = node()
    for pid, (name, limit) in processes.items():
        (this.proc / pid).mkdir()
        (this.proc / pid / "comm").write_text(f"{name}\n")
        row = f"{'Max locked memory':26}{8192:<21}{limit:<21}{'bytes':<10}\n"
        (this.proc / pid / "limits").write_text(f"Limit                     Soft Limit ...\n{row}")
    finding = about(findings(this), Check.MEMLOCK)
    assert (finding.severity, said in finding.problem.wrong) == (severity, True), finding


@pytest.mark.parametrize(
    ("enabled", "shmem_enabled", "severities"),
    [
        ("[always] madvise never", "always within_size [advise] never deny force", [Severity.OK]),
        ("always [madvise] never", "always within_size advise [never] deny force", [Severity.OK, Severity.NOTE]),
        ("always madvise [never]", "always within_size advise never [deny] force", [Severity.NOTE, Severity.WARNING]),
        ("", "", []),
    ],
)
def test_the_page_size_of_guests_memory_is_said_with_what_it_costs(
    findings: Examine, node: NodeOf, enabled: str, shmem_enabled: str, severities: list[Severity]
) -> None:
    this = node()
    settings = this.sys / "kernel/mm/transparent_hugepage"
    settings.mkdir(parents=True)
    (settings / "enabled").write_text(f"{enabled}\n")
    (settings / "shmem_enabled").write_text(f"{shmem_enabled}\n")
    found = [finding for finding in findings(this) if finding.check is Check.HUGE_PAGES]
    assert sorted(finding.severity for finding in found) == severities
    assert all("some 20 s more to start" in finding.problem.wrong for finding in found if finding.problem.fix)


def test_a_card_on_a_driver_of_the_hosts_is_bound_or_withheld(findings: Examine, node: NodeOf) -> None:
    this = node()
    bind(this.sys, GPU, "nvidia")
    found = about(findings(this), Check.VIABILITY, GPU)
    assert found == NodeFinding(
        Severity.ERROR,
        Problem(GPU, "is bound to nvidia", "bind the whole card to vfio-pci"),
        Check.VIABILITY,
        (f"gpu-plugin bind {GPU}", "if the node is to keep it: a rule with withhold: true in the config"),
    )
    withheld = about(findings(this, Config(offer=(Rule(address=GPU, withhold=True),))), Check.VIABILITY, GPU)
    assert (withheld.severity, withheld.problem.wrong, fixes(withheld)) == (
        Severity.NOTE,
        "is withheld by the config",
        (),
    )


def test_what_is_not_on_pci_is_freed_of_its_driver_by_what_is_written(findings: Examine, node: NodeOf) -> None:
    this = node()
    platform_device(this.sys, 1, "INTC1055:00", "intel-lpss")
    found = about(findings(this), Check.VIABILITY, GPU)
    assert (found.severity, found.steps) == (
        Severity.ERROR,
        ("echo INTC1055:00 > /sys/kernel/iommu_groups/1/devices/INTC1055:00/driver/unbind",),
    )


def test_two_cards_as_one_unit_are_fine(findings: Examine, node: NodeOf) -> None:
    config = Config(groups=Groups.TOGETHER, offer=(Rule(vendor="10de", resource="nvidia.com/pair"),))
    found = findings(node("two-gpus-one-group"), config)
    assert about(found, Check.OFFER).problem.wrong == "devices that can be handed out: 1 of 2"
    assert worst(found) is Severity.NOTE


def test_a_group_that_no_rule_makes_a_unit_is_not_told_to_be_together_again(findings: Examine, node: NodeOf) -> None:
    found = about(findings(node("two-gpus-one-group"), Config(groups=Groups.TOGETHER)), Check.VIABILITY, GPU)
    assert (found.severity, found.steps) == (Severity.ERROR, ())


def test_the_nodes_own_screen_is_left_to_it(findings: Examine, node: NodeOf) -> None:
    found = about(findings(node()), Check.BOOT_VGA, SCREEN)
    assert (found.severity, fixes(found)) == (
        Severity.NOTE,
        ("if a guest is to have it: let the firmware put that on another card (its setup calls it primary display)",),
    )


#: By machine, as it was recorded: the discrete cards that the doctor names, and its exit code.
DISCRETE = {
    "hgx-a100-8-gpu": (8, 0),
    "lab-bare": (0, 4),
    "lab-legacy": (0, 4),
    "lab-modern": (0, 4),
    "rtx-2060": (1, 0),
    "rtx-2060-audio-on-snd-hda-intel": (1, 4),
    "rtx-2060-without-iommu": (1, 4),
    "two-cards-nested-vfio": (0, 4),
    "two-gpus-one-group": (2, 4),
    "two-h100": (2, 0),
    "cards-of-several-groups": (2, 0),
    "two-rtx-3090": (2, 0),
    "virtual-machine-without-iommu": (0, 0),
}


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_the_processors_own_gpu_is_no_problem_of_any_machine(gpu_plugin: Command, machine: Machine, name: str) -> None:
    result = gpu_plugin("doctor", "--json", "--sysfs", machine(name), "--pci-ids", FIXTURES / "pci.ids")
    page = json.loads(result.stdout)
    gpus = [device["functions"][0] for device in page["devices"] if device["functions"][0]["class"].startswith("03")]
    discrete = [gpu["address"] for gpu in gpus if gpu["id"].startswith(("10de", "1002", "8086:56"))]
    assert (len(discrete), result.returncode) == DISCRETE[name]
    assert {finding["severity"] for finding in page["findings"] if finding["device"] == SCREEN} <= {"note"}


def test_the_processors_own_gpu_is_a_note_until_a_rule_asks_for_it(findings: Examine, node: NodeOf) -> None:
    this = node()
    look_closely(this.sys, SCREEN, boot_vga="0", reset_method=None, resource="")
    (found,) = (finding for finding in findings(this) if finding.device == SCREEN)
    assert (found.severity, found.check) == (Severity.NOTE, Check.VIABILITY)
    assert found.problem.wrong == "is the processor's own GPU, which no rule of the config asks for: is bound to i915"
    assert fixes(found) == (f"if a guest is to have it: gpu-plugin bind {SCREEN}",)
    asked_for = Config(offer=(Rule(address=SCREEN, resource="intel.com/uhd-630"),))
    assert about(findings(this, asked_for), Check.VIABILITY, SCREEN).severity is Severity.ERROR


def test_a_boot_vga_that_vfio_has_leaves_the_node_without_a_screen(findings: Examine, node: NodeOf) -> None:
    this = node()
    look_closely(this.sys, GPU, boot_vga="1")
    found = about(findings(this), Check.BOOT_VGA, GPU)
    assert found.severity is Severity.WARNING
    assert found.problem.wrong == "is the boot VGA, and on vfio-pci: the node has no screen of its own"


def without_reset(this: Node, *functions: int) -> None:
    for function in functions:
        look_closely(this.sys, f"0000:01:00.{function}", reset_method=None)


def test_vfio_resets_the_bus_that_a_card_has_for_itself(findings: Examine, node: NodeOf, gpu_plugin: Command) -> None:
    this = node()
    without_reset(this, 0, 1, 2, 3)
    assert Check.RESET not in {finding.check for finding in findings(this)}
    assert "0000:01:00.0 (VGA)    vfio-pci  D3hot  1: 256 MiB  its bus, by VFIO" in gpu_plugin(*this.flags).stdout


def test_a_card_without_reset_that_shares_its_bus_is_no_good_for_two_guests(findings: Examine, tmp_path: Path) -> None:
    port = "pci0000:00/0000:00:01.0"
    cards = [
        function
        for slot, group in (("0000:01:00", 1), ("0000:01:01", 2))
        for function in card(slot, RTX_2060[:1], path=port, group=group)
    ]
    this = Node(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev")
    compose(this.sys, desktop(cards))
    look_closely(this.sys, "0000:01:01.0", reset_method="flr")
    found = about(findings(this), Check.RESET, GPU)
    assert found.severity is Severity.WARNING
    assert (
        "it shares its bus with 0000:01:01.0 (VGA), so that a guest finds what the last one left" in found.problem.wrong
    )


def test_a_card_without_reset_on_the_root_complex_is_no_good_for_two_guests(
    findings: Examine, node: NodeOf, gpu_plugin: Command
) -> None:
    this = node()
    bind(this.sys, SCREEN, "vfio-pci")
    look_closely(this.sys, SCREEN, reset_method=None)
    assert "it sits on the root complex" in about(findings(this), Check.RESET, SCREEN).problem.wrong
    assert "0000:00:02.0 (VGA)    vfio-pci  D0     0: 16 KiB   none" in gpu_plugin(*this.flags).stdout


def test_a_model_that_does_not_survive_a_reset_is_a_warning(
    findings: Examine, node: NodeOf, gpu_plugin: Command, tmp_path: Path
) -> None:
    this = node()
    becomes(this.sys, GPU, "10de:2b85")
    assert "GB202" in about(findings(this), Check.RESET, GPU).problem.wrong
    table = gpu_plugin("inventory", *this.flags[1:]).stdout
    assert f"{GPU} may die of its next reset: it is a GB202" in table
    # Its kernel has the quirk.
    look_closely(this.sys, GPU, reset_method="bus")
    assert Check.RESET not in {finding.check for finding in findings(this)}
    # Nobody gets it.
    look_closely(this.sys, GPU, reset_method="flr")
    withheld = Config(deadly_resets=DeadlyResets.WITHHOLD, offer=(Rule(device="10de:2b85", prefix="nvidia.com"),))
    assert "GB202" in about(findings(this, withheld), Check.VIABILITY, GPU).problem.wrong


def test_the_gpu_of_a_grace_superchip_is_a_warning_since_its_guest_needs_more_than_the_card(
    findings: Examine, node: NodeOf
) -> None:
    this = node()
    becomes(this.sys, GPU, "10de:2342")
    found = about(findings(this), Check.GRACE, GPU)
    assert found.severity is Severity.WARNING
    assert "gpu-launcher refuses it, and so does KubeVirt without its gate GraceIOVirtualization" in found.problem.wrong
    # Nobody gets it.
    withheld = Config(offer=(Rule(device="10de:2342", withhold=True),))
    assert Check.GRACE not in {finding.check for finding in findings(this, withheld)}


def test_what_vfio_had_before_the_config_wanted_it_otherwise_is_a_warning(findings: Examine, node: NodeOf) -> None:
    this = node()
    look_closely(this.sys, GPU, d3cold_allowed="1")
    config = Config(offer=(Rule(device="10de:1f08", prefix="nvidia.com", reset_method=(), d3cold_allowed=False),))
    reset = about(findings(this, config), Check.RESET, GPU)
    assert "has flr bus in reset_method of 0000:01:00.0 (VGA), and the config wants nothing" in reset.problem.wrong
    assert f"echo > /sys/bus/pci/devices/{GPU}/reset_method" in reset.steps[0]
    power = about(findings(this, config), Check.POWER, GPU)
    assert "has 1 in d3cold_allowed of 0000:01:00.0 (VGA), and the config wants 0" in power.problem.wrong
    look_closely(this.sys, GPU, d3cold_allowed="0", reset_method="")
    assert not {Check.RESET, Check.POWER} & {each.check for each in findings(this, config) if each.device == GPU}


def test_errors_that_the_kernel_has_counted_are_a_note(findings: Examine, node: NodeOf) -> None:
    this = node()
    aer(this.sys, GPU, correctable=9)
    assert Check.PCIE_ERRORS not in {finding.check for finding in findings(this)}
    aer(this.sys, GPU, nonfatal=2, fatal=1)
    found = about(findings(this), Check.PCIE_ERRORS, GPU)
    assert found.problem.wrong == (
        "has had 2 nonfatal and 1 fatal PCIe errors since the node found it (AER of 0000:01:00.0 (VGA))"
    )
    assert found.severity is Severity.NOTE


def test_what_nobody_asks_for_may_be_without_reset(findings: Examine, node: NodeOf) -> None:
    this = node()
    bind(this.sys, SCREEN, "vfio-pci")
    look_closely(this.sys, SCREEN, reset_method=None)
    config = Config(offer=(Rule(address=SCREEN, withhold=True),))
    assert Check.RESET not in {finding.check for finding in findings(this, config) if finding.device == SCREEN}


def test_of_a_kernel_that_tells_no_resets_they_are_unknown(
    findings: Examine, node: NodeOf, gpu_plugin: Command
) -> None:
    this = node()
    for address in map(str, read_host(this.sys).functions):
        look_closely(this.sys, address, reset_method=None)
    assert Check.RESET not in {finding.check for finding in findings(this)}
    assert "0000:01:00.0 (VGA)    vfio-pci  D3hot  1: 256 MiB  unknown" in gpu_plugin(*this.flags).stdout


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (
            bars((0xA3000000, 16 * MIB), (0, 32 * 1024 * MIB), None),
            "is not all there: the kernel found no place for BAR 1 of 0000:01:00.0 (VGA), 32 GiB of 64-bit addresses",
        ),
        (bars(None, None), "is not all there: 0000:01:00.0 (VGA) has no BAR, and nothing of its memory can be reached"),
    ],
)
def test_a_bar_without_a_place_wants_decoding_above_4_gib(
    findings: Examine, node: NodeOf, resource: str, text: str
) -> None:
    this = node()
    look_closely(this.sys, GPU, resource=resource)
    found = about(findings(this), Check.BARS, GPU)
    assert (found.severity, found.problem.wrong) == (Severity.ERROR, text)
    assert fixes(found) == ("turn on 'Above 4G Decoding' (64-bit MMIO) in the firmware", "or boot with pci=realloc")


def test_a_card_without_power_may_not_wake(findings: Examine, node: NodeOf) -> None:
    this = node()
    look_closely(this.sys, GPU, power_state="D3cold")
    found = about(findings(this), Check.POWER, GPU)
    assert (found.severity, fixes(found)) == (
        Severity.NOTE,
        (f"d3cold_allowed: false in its rule of the config, or echo 0 > /sys/bus/pci/devices/{GPU}/d3cold_allowed",),
    )


def test_a_card_on_no_numa_node_is_noted(findings: Examine, node: NodeOf) -> None:
    this = node()
    look_closely(this.sys, GPU, numa_node="-1")
    assert about(findings(this), Check.NUMA, GPU).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("path", "content", "fault"),
    [
        ("bus/pci/devices/0000:00:14.0/uevent", "?", "bus/pci/devices/0000:00:14.0/uevent: holds '?'"),
        (f"bus/pci/devices/{GPU}/resource", "?", f"bus/pci/devices/{GPU}/resource: holds '?'"),
        (
            "module/vfio/parameters/enable_unsafe_noiommu_mode",
            "?",
            "module/vfio/parameters/enable_unsafe_noiommu_mode: holds '?'; expected Y or N",
        ),
    ],
)
def test_what_could_not_be_read_is_a_warning(
    findings: Examine, node: NodeOf, path: str, content: str, fault: str
) -> None:
    this = node()
    (this.sys / path).write_text(content)
    found = about(findings(this), Check.SYSFS)
    assert found.severity is Severity.WARNING
    assert found.problem.wrong.startswith(f"not read: {fault}")


def test_a_proc_that_cannot_be_read_is_a_warning(findings: Examine, node: NodeOf) -> None:
    this = node()
    (this.proc / "cmdline").write_bytes(b"\xff")
    assert (
        about(findings(this), Check.SYSFS).problem.wrong == "not read: proc/cmdline: holds binary data; expected text"
    )


def test_a_mediated_device_is_asked_for_its_reason_only(findings: Examine, tmp_path: Path) -> None:
    this = Node(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev")
    gpu = Function(address=GPU, id="10de:1eb8", pci_class=0x030200, path="pci0000:00/0000:00:01.0", driver="nvidia")
    compose(this.sys, [gpu])
    uuid = "aa618089-8b16-4d01-a136-25a0f3c73123"
    parent = this.sys / "devices/pci0000:00/0000:00:01.0" / GPU
    (parent / uuid / "mdev_type").mkdir(parents=True)
    (parent / uuid / "mdev_type/name").write_text("GRID T4-1Q\n")
    (this.sys / "bus/mdev/devices").mkdir(parents=True)
    (this.sys / "bus/mdev/devices" / uuid).symlink_to(f"../../../devices/pci0000:00/0000:00:01.0/{GPU}/{uuid}")
    found = [finding for finding in findings(this) if finding.device == uuid]
    assert [(finding.check, finding.steps) for finding in found] == [(Check.VIABILITY, ())]
    (about_kubevirt,) = (finding for finding in findings(this) if finding.check is Check.MDEVS)
    assert about_kubevirt.problem.wrong.startswith("has 1 mediated devices, and KubeVirt's virt-handler removes those")


# What is read is recorded


def test_a_recorded_node_has_the_same_platform(node: NodeOf, tmp_path: Path) -> None:
    this = node()
    record(this.sys, tmp_path / "record")
    assert read_platform(tmp_path / "record", this.proc) == read_platform(this.sys, this.proc)
    assert not (tmp_path / "record/kernel/irq/1").exists()
