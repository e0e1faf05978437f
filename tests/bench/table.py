"""Figures beside the floor's of the same run, as one table, and what of them is reached."""

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
    """One figure as text: ours, the floor's in the same run, their ratio, what that may be, and whether it is. A figure
    without a floor has no verdict: how many milliseconds something takes says more about the machine than about us."""

    figure: str
    ours: str
    floor: str = ""
    ratio: str = ""
    reach: str = ""
    reached: bool | None = None


def within_times(figure: str, values: Beside, unit: str, times: float) -> Line:
    """Medians; and the median of the runs' ratios, at most so many times the floor."""
    ratio = statistics.median(ours / floor for ours, floor in zip(values.ours, values.floor, strict=True))
    return Line(figure, *_medians(values, unit), f"{ratio:.2f}x", f"<= {times:g}x floor", ratio <= times)


def beside(figure: str, values: Beside, unit: str) -> Line:
    """Medians, where the floor's may be nothing."""
    return Line(figure, *_medians(values, unit))


def alone(figure: str, values: Sequence[float], unit: str, *percents: int) -> Line:
    """Values of ours, at each of these percentiles; 100 is the greatest."""
    found = {f"p{percent}" if percent < 100 else "max": percentile(values, percent) for percent in percents}
    said = (f"{name} {'never' if value == math.inf else f'{value:.1f} {unit}'}" for name, value in found.items())
    return Line(figure, ", ".join(said))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that so many percent of them are not above."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def table(lines: Iterable[Line]) -> str:
    rows = [("", "OURS", "FLOOR", "RATIO", "REACH", "REACHED")]
    verdicts = {True: "yes", False: "NO", None: ""}
    rows += [(line.figure, line.ours, line.floor, line.ratio, line.reach, verdicts[line.reached]) for line in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _medians(values: Beside, unit: str) -> tuple[str, str]:
    return f"{statistics.median(values.ours):.1f} {unit}", f"{statistics.median(values.floor):.1f} {unit}"
