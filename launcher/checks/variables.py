"""What the pod was given, against the manifest's entries."""

from collections.abc import Iterable, Iterator

from launcher.claims import LeftOver
from program.finding import Finding
from program.problem import Severity


def of_left_over(left_over: Iterable[LeftOver]) -> Iterator[Finding]:
    """Yield the devices that the pod holds, so that no other pod can have them, and that nobody gets."""
    for left in left_over:
        yield Finding(Severity.WARNING, left.problem)
