"""What a look at many things comes to: the findings of `gpu-plugin doctor` and `gpu-launcher check`."""

from collections.abc import Iterable
from dataclasses import dataclass

from program.problem import Problem, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a thing, and how bad that is.

    What is OK needs no fix, and what is worth a NOTE may need none.
    """

    severity: Severity
    problem: Problem

    def __str__(self) -> str:
        return str(self.problem)


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the severity of the worst; OK if there is none."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each once, the worst first, and else in their order."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: -finding.severity))
