"""Pictures read back: what they say, and that nothing is drawn over anything else."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Self

from lxml import etree
from lxml.etree import _Element as Element


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def of(cls, rect: Element) -> Self:
        x, y, width, height = (float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
        return cls(x, y, x + width, y + height)

    def holds(self, other: "Box") -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def meets(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@dataclass(frozen=True)
class Drawn:
    """A picture that was read back: each box of a kind with its element."""

    root: Element
    boxes: dict[str, list[tuple[Element, Box]]]

    @property
    def words(self) -> str:
        """All that it says, without blanks: lines break anywhere."""
        return squeezed("".join(text.text or "" for text in self.root.iter("{*}text")))

    @property
    def title(self) -> str:
        return self.root.findtext("{*}title") or ""

    def cards(self) -> list[list[str]]:
        return [[text.text or "" for text in card.iter("{*}text")] for card, _ in self.boxes["card"]]


def squeezed(text: str) -> str:
    return "".join(text.split())


KINDS = ("machine", "numa", "root", "port", "card", "group", "legend")


def read_back(svg: str) -> Drawn:
    root = etree.fromstring(svg)
    boxes = {
        kind: [
            (group, Box.of(next(group.iter("{*}rect")))) for group in root.iter("{*}g") if group.get("class") == kind
        ]
        for kind in KINDS
    }
    return Drawn(root, boxes)


def text_box(text: Element) -> Box:
    """A text's place in the widest of the usual monospaced fonts."""
    size = 18 if "title" in text.get("class", "") else 12
    x, baseline = float(text.get("x", "")), float(text.get("y", ""))
    return Box(x, baseline - 0.78 * size, x + 0.62 * size * len(text.text or ""), baseline + 0.24 * size)


def assert_nothing_overlaps(drawn: Drawn) -> None:
    page = Box.of(drawn.root)
    assert drawn.root.get("viewBox") == f"0 0 {page.right:.0f} {page.bottom:.0f}"
    for kind, boxes in drawn.boxes.items():
        for (_, one), (_, other) in combinations(boxes, 2):
            assert not one.meets(other), kind
    for _, port in drawn.boxes["port"]:
        assert not any(port.meets(other) for kind in ("card", "group") for _, other in drawn.boxes[kind])
    for group, box in [found for kind in KINDS for found in drawn.boxes[kind]]:
        parent = group.getparent()
        assert parent is not None
        assert (page if parent is drawn.root else Box.of(next(parent.iter("{*}rect")))).holds(box)
    assert_texts_are_in_place(drawn, page)
    assert_lines_cross_nothing(drawn)


def assert_texts_are_in_place(drawn: Drawn, page: Box) -> None:
    texts = list(drawn.root.iter("{*}text"))
    for one, other in combinations(map(text_box, texts), 2):
        assert not one.meets(other)
    for text in texts:
        parent = text.getparent()
        assert parent is not None
        assert page.holds(text_box(text))
        if parent.get("class") in KINDS:
            assert Box.of(next(parent.iter("{*}rect"))).holds(text_box(text)), text.text
        elif parent.get("class") == "line":
            boxes = [box for kind in ("port", "card", "group") for _, box in drawn.boxes[kind]]
            assert not any(text_box(text).meets(box) for box in boxes), text.text


def assert_lines_cross_nothing(drawn: Drawn) -> None:
    boxes = [box for kind in ("port", "card") for _, box in drawn.boxes[kind]]
    for path in drawn.root.iter("{*}path"):
        if path.get("class") == "curve":
            continue
        corners = [tuple(map(float, corner.split(","))) for corner in path.get("d", "")[1:].split(" L")]
        for (x1, y1), (x2, y2) in pairwise(corners):
            segment = Box(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
            assert x1 == x2 or y1 == y2
            assert not any(segment.meets(box) for box in boxes)


def curves(drawn: Drawn) -> list[tuple[float, float, float, float]]:
    """Where each begins and ends, as x, y, x, y; up and down it goes where there is nothing else."""
    found = []
    texts = [text_box(text) for text in drawn.root.iter("{*}text")]
    for path in drawn.root.iter("{*}path"):
        if path.get("class") == "curve":
            points = (point.lstrip("MCL").split(",") for point in path.get("d", "").split())
            (x1, y1), (left, y2), *_, (right, y3), (x2, y4) = ((float(x), float(y)) for x, y in points)
            assert (y1, y3) == (y2, y4)
            between = Box(left, min(y2, y3), right, max(y2, y3))
            assert not any(between.meets(box) for boxes in drawn.boxes.values() for _, box in boxes)
            for part in (between, Box(x1, y1 - 1, left, y1 + 1), Box(right, y4 - 1, x2, y4 + 1)):
                assert not any(text.meets(part) for text in texts)
            found.append((x1, y1, x2, y4))
    return found
