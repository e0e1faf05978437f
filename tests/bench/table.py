"""Figures and what they ought to be, as one table."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Beside:
    """Values of ours and of the floor, one of each a run."""

    ours: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    def add(self, ours: float, floor: float) -> None:
        self.ours.append(ours)
        self.floor.append(floor)


@dataclass(frozen=True)
class Line:
    """One figure as text: ours, the floor's in the same run, their ratio, what it ought to be; and whether it is."""

    figure: str
    ours: str
    floor: str
    ratio: str
    reach: str
    reached: bool


def within_times(figure: str, values: Beside, unit: str, times: float) -> Line:
    """Medians; and the median of the runs' ratios, at most so many times the floor."""
    ratio = _ratio(values)
    return Line(figure, *_medians(values, unit), f"{ratio:.2f}x", f"<= {times:g}x floor", ratio <= times)


def within_more(figure: str, values: Beside, unit: str, more: float) -> Line:
    """Medians; and the median of the runs' differences, at most so much more than the floor."""
    difference = statistics.median(ours - floor for ours, floor in zip(values.ours, values.floor, strict=True))
    reach = f"<= floor + {more:g} {unit}"
    return Line(figure, *_medians(values, unit), f"{_ratio(values):.2f}x", reach, difference <= more)


def within_beside(figure: str, values: Beside, unit: str, most: float) -> Line:
    """Medians; ours at most so much, whatever the floor's."""
    reached = statistics.median(values.ours) <= most
    return Line(figure, *_medians(values, unit), "", f"<= {most:g} {unit}", reached)


def within(figure: str, values: Sequence[float], unit: str, **bounds: float) -> Line:
    """Many values of ours alone, and what each of `p50`, `p99` and `max` may be at most."""
    found = {name: percentile(values, {"p50": 50, "p99": 99, "max": 100}[name]) for name in bounds}
    ours = ", ".join(
        f"{name} {'never' if value == math.inf else f'{value:.1f} {unit}'}" for name, value in found.items()
    )
    reach = ", ".join(f"{name} <= {bound:g} {unit}" for name, bound in bounds.items())
    return Line(figure, ours, "", "", reach, all(found[name] <= bound for name, bound in bounds.items()))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that so many percent of them are not above."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def table(lines: Iterable[Line]) -> str:
    rows = [("", "OURS", "FLOOR", "RATIO", "REACH", "REACHED")]
    rows += [
        (line.figure, line.ours, line.floor, line.ratio, line.reach, "yes" if line.reached else "NO") for line in lines
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _ratio(values: Beside) -> float:
    return statistics.median(ours / floor for ours, floor in zip(values.ours, values.floor, strict=True))


def _medians(values: Beside, unit: str) -> tuple[str, str]:
    return f"{statistics.median(values.ours):.1f} {unit}", f"{statistics.median(values.floor):.1f} {unit}"
