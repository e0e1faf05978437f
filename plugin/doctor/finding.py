"""Findings about a node or a device, with severity and steps."""

from dataclasses import dataclass
from enum import StrEnum

import program.finding
from program.problem import Problem, Severity


class Check(StrEnum):
    """The subject of a finding: first subjects of the node, then those of a device."""

    OFFER = "offer"
    SYSFS = "sysfs"
    STATE = "state"
    VIRTUAL_MACHINE = "virtual-machine"
    IOMMU = "iommu"
    COMMAND_LINE = "command-line"
    ACS_OVERRIDE = "acs-override"
    INTERRUPTS = "interrupt-remapping"
    NO_IOMMU_MODE = "no-iommu-mode"
    VFIO_DRIVER = "vfio-driver"
    VFIO_IOMMU = "vfio-iommu"
    DEVICE_NODES = "device-nodes"
    MEMLOCK = "memlock"
    HUGE_PAGES = "huge-pages"
    FABRIC = "fabric"
    MDEVS = "mediated-devices"
    PEER_TO_PEER = "peer-to-peer"

    VIABILITY = "viability"
    WHOLE_CARD = "whole-card"
    BOOT_VGA = "boot-vga"
    RESET = "reset"
    BARS = "bars"
    POWER = "power"
    PCIE_ERRORS = "pcie-errors"
    NUMA = "numa"
    GRACE = "grace"


#: The subject of a finding that is not about a device.
NODE = "the node"


@dataclass(frozen=True, slots=True)
class NodeFinding(program.finding.Finding):
    """A finding. The subject of its `problem` is the node, or a device's ID; the words go after "it". `steps` are
    commands and alternatives beside the fix."""

    check: Check
    steps: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The ID of the device; None for a finding about the node."""
        return None if self.problem.subject == NODE else self.problem.subject


def fine(check: Check, words: str) -> NodeFinding:
    return NodeFinding(Severity.OK, Problem(NODE, words, ""), check)


def note(check: Check, words: str, fix: str = "", *, of: str = NODE) -> NodeFinding:
    return NodeFinding(Severity.NOTE, Problem(of, words, fix), check)


def warning(check: Check, wrong: str, fix: str, *steps: str, of: str = NODE) -> NodeFinding:
    return NodeFinding(Severity.WARNING, Problem(of, wrong, fix), check, steps)


def error(check: Check, wrong: str, fix: str, *steps: str, of: str = NODE) -> NodeFinding:
    return NodeFinding(Severity.ERROR, Problem(of, wrong, fix), check, steps)
