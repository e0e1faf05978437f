"""What the user gets on stderr: warnings."""

import sys
from collections.abc import Iterable

from launcher.checks.seats import misplaced, of_bars
from launcher.facts import Facts
from launcher.guest_pci import hole
from launcher.guest_pci.addresses import Layout
from launcher.manifest.spec import VirtualMachineInstance
from program.finding import Finding


def warn_of_bars(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> None:
    say(of_bars(hole.warnings(vmi, layout, facts)))


def warn_of_misplaced(layout: Layout) -> None:
    say(misplaced(layout))


def say(findings: Iterable[Finding]) -> None:
    for finding in findings:
        print(f"gpu-launcher: {finding.severity.word}: {finding.problem}", file=sys.stderr)
