"""What the user gets on stderr: warnings."""

import sys

from launcher.guest_pci.addresses import Layout
from program.problem import one_line


def warn_of_misplaced(layout: Layout) -> None:
    for seat in layout.seats:
        if seat.misplaced is not None:
            warn(f"{seat.claim.entry}: {seat.misplaced}")


def warn(text: str) -> None:
    say("warning", text)


def say(level: str, text: str) -> None:
    print(f"gpu-launcher: {level}: {one_line(text)}", file=sys.stderr)
