"""One thing that stands in a VM's way, with what mends it; and all of them as a page and as JSON.

The JSON's keys stay; new ones may come.

    level           of the worst finding: ok, warning, error
    findings        errors first, then in the order in which they were looked for
      level         error: the VM does not start, or would have what is not its own
                    warning: it starts, and may not do well
      subject       what it is about: an entry of the manifest, a volume, a file, a limit
      says          what is wrong with it
      fix           what mends it
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from program.problem import one_line


class Level(IntEnum):
    """How bad, the worst last."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is a name, `says` a sentence about it, `fix` what to do; they are one line together."""

    level: Level
    subject: str
    says: str
    fix: str

    def __str__(self) -> str:
        return one_line(f"{self.subject}: {self.says}; {self.fix}")


def error(subject: object, says: str, fix: str) -> Finding:
    return Finding(Level.ERROR, str(subject), says, fix)


def warning(subject: object, says: str, fix: str) -> Finding:
    return Finding(Level.WARNING, str(subject), says, fix)


def said(level: Level, text: object, subject: object | None = None) -> Finding:
    """What another stage has said in one line, "WHAT: what is wrong; what to do": with its own WHAT, or with `subject`
    for the name that the line may begin with."""
    says, _, fix = str(text).partition("; ")
    if subject is None:
        what, colon, rest = says.partition(": ")
        subject, says = (what, rest) if colon else ("the manifest", says)
    return Finding(level, str(subject), says.removeprefix(str(subject)).lstrip(": "), fix)


def worst(findings: Iterable[Finding]) -> Level:
    return max((finding.level for finding in findings), default=Level.OK)


def sorted_by_level(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: -finding.level))


def page(findings: tuple[Finding, ...]) -> str:
    """A count, then two lines for each finding."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    lines = [f"Errors: {counts[Level.ERROR]}, warnings: {counts[Level.WARNING]}."]
    for finding in findings:
        lines += [
            "",
            f"{finding.level.name.lower()}: {one_line(finding.subject)}: {one_line(finding.says)}",
            f"  {one_line(finding.fix)}",
        ]
    return "\n".join(lines) + "\n"


def as_json(findings: tuple[Finding, ...]) -> str:
    found = {
        "level": worst(findings).name.lower(),
        "findings": [
            {
                "level": finding.level.name.lower(),
                "subject": finding.subject,
                "says": finding.says,
                "fix": finding.fix,
            }
            for finding in findings
        ],
    }
    return json.dumps(found, indent=2) + "\n"
