"""What the user gets: text on stdout, warnings on stderr."""

import sys

from launcher.errors import one_line
from launcher.facts import Facts
from launcher.guest_pci import hole
from launcher.guest_pci.addresses import Layout
from launcher.manifest.spec import VirtualMachineInstance


def print_text(text: str) -> None:
    # Bytes, so that they are the same in every locale; and not sys.stdout, which is None where it was closed.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(text.encode())


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
