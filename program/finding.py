"""The findings of `gpu-plugin doctor` and `gpu-launcher check`, and a finding as JSON."""

from collections.abc import Iterable
from dataclasses import dataclass

from program.problem import Problem, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and how bad it is. An OK has no fix, and a NOTE may have none."""

    severity: Severity
    problem: Problem

    def __str__(self) -> str:
        return str(self.problem)

    def as_json(self) -> dict[str, str]:
        """Return the keys that a finding has in the JSON of every command: those of its problem and `severity`."""
        return {"severity": self.severity.word, **self.problem.as_json()}


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the severity of the worst finding; OK without findings."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, the worst first, otherwise in their order."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: -finding.severity))
