"""What the user gets on stderr: warnings."""

import sys

from launcher.facts import Facts
from launcher.guest_pci import hole
from launcher.guest_pci.addresses import Layout
from launcher.manifest.spec import VirtualMachineInstance
from program.problem import one_line


def warn_of_bars(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> None:
    for warning in hole.warnings(vmi, layout, facts):
        warn(warning)


def warn_of_misplaced(layout: Layout) -> None:
    for seat in layout.seats:
        if seat.misplaced is not None:
            warn(f"{seat.claim.entry}: {seat.misplaced}")


def warn(text: str) -> None:
    say("warning", text)


def say(level: str, text: str) -> None:
    print(f"gpu-launcher: {level}: {one_line(text)}", file=sys.stderr)
