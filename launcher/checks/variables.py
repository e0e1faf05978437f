"""The manifest's entries against what the pod was given for them."""

from collections.abc import Iterable, Iterator

from launcher.claims import LeftOver
from program.errors import ProgramError
from program.finding import Finding
from program.problem import Severity


def of_entries(unmet: Iterable[ProgramError]) -> Iterator[Finding]:
    """Yield the entries that have no device, each with why."""
    for error in unmet:
        yield from (Finding(Severity.ERROR, problem) for problem in error.problems)


def of_left_over(left_over: Iterable[LeftOver]) -> Iterator[Finding]:
    """Yield the devices that the pod holds, so that no other pod can have them, and that nobody gets."""
    for left in left_over:
        yield Finding(Severity.WARNING, left.problem)
