"""The findings of `gpu-launcher check`, as a page and as JSON.

The JSON's keys stay; new ones may come.

    level           of the worst finding: ok, note, warning, error
    findings        errors first, then in the order in which they were looked for
      severity      error: the VM does not start, or would have what is not its own
                    warning: it starts, and may not do well
                    note: what was not looked at, and what else is worth knowing
      subject       what it is about: an entry of the manifest, a volume, a file, a limit
      wrong         what is wrong with it
      fix           what to do about it
"""

import json

from program.finding import Finding, worst
from program.problem import Problem, Severity, one_line
from program.terminal import painted


def error(subject: object, wrong: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, Problem(str(subject), wrong, fix))


def warning(subject: object, wrong: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, Problem(str(subject), wrong, fix))


def page(findings: tuple[Finding, ...], *, coloured: bool = False) -> str:
    """Return a count, then two lines for each finding."""
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    lines = [f"Errors: {counts[Severity.ERROR]}, warnings: {counts[Severity.WARNING]}."]
    for finding in findings:
        subject, wrong, fix = map(one_line, finding.problem)
        level = painted(f"{finding.severity.word}:", finding.severity, coloured=coloured)
        lines += ["", f"{level} {subject}: {wrong}", f"  {fix}"]
    return "\n".join(lines) + "\n"


def as_json(findings: tuple[Finding, ...]) -> str:
    document = {"level": worst(findings).word, "findings": [finding.as_json() for finding in findings]}
    return json.dumps(document, indent=2) + "\n"
