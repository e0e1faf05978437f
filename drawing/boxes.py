"""Boxes with text, beside and below each other, as SVG.

All positions are known before anything is drawn, since the width of monospaced text needs no font. Lengths are pixels,
y grows downwards.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lxml import etree
from lxml.builder import ElementMaker
from lxml.etree import _Element

Element = _Element

LINE = 16
PAD = 8
GAP = 14

_FONT, _TITLE_FONT = 12, 18
_LETTER = 0.625  # of the font's size; no monospaced font in use has wider letters
_STRIP = 6
_ASPECT = 1.5  # width to height of a screen

_SVG = "http://www.w3.org/2000/svg"
_E = ElementMaker(namespace=_SVG, nsmap={None: _SVG})

_STYLE = f"""
text {{ font-family: "DejaVu Sans Mono", "Liberation Mono", Menlo, Consolas, monospace; font-size: {_FONT}px; }}
text.title {{ font-size: {_TITLE_FONT}px; }}
text.strong {{ font-weight: bold; }}
path {{ fill: none; stroke: #666; }}
rect, path {{ shape-rendering: crispEdges; }}
path.curve {{ shape-rendering: auto; stroke-width: 2px; }}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text; `indent` is in letters."""

    text: str
    strong: bool = False
    indent: int = 0

    @property
    def width(self) -> int:
        return _width(self.indent + len(self.text), _FONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """The colours of a box. With `strip` its left side has a strip in the colour of the edge."""

    box: str = "#ffffff"
    edge: str = "#666666"
    strip: bool = False
    dashed: bool = False


OUTLINE = Colours(box="none", edge="#000000", dashed=True)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a picture: `draw(x, y)` returns its elements with the upper left corner at x, y.

    `ends` are the points where lines from outside end, by name, relative to the upper left corner.
    """

    width: int
    height: int
    draw: Callable[[int, int], list[Element]]
    ends: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def ends_at(self, x: int, y: int) -> dict[str, tuple[int, int]]:
        """Return the ends if the block is at x, y."""
        return {name: (x + left, y + top) for name, (left, top) in self.ends.items()}


def written(lines: Sequence[Line], *, width: int = 0) -> Block:
    """Return lines of text below each other, at least `width` pixels wide."""

    def draw(x: int, y: int) -> list[Element]:
        return [text(x, y + number * LINE + _FONT, line) for number, line in enumerate(lines)]

    return Block(max(width, *(line.width for line in lines)), len(lines) * LINE, draw)


def boxed(kind: str, lines: Sequence[Line], colours: Colours, *, width: int = 0) -> Block:
    """Return lines in a box that is at least `width` pixels wide."""
    inner = written(lines)
    strip = _STRIP if colours.strip else 0
    whole = max(width, inner.width + 2 * PAD + strip)
    height = inner.height + 2 * PAD

    def draw(x: int, y: int) -> list[Element]:
        edge = [_element("rect", x=x, y=y, width=strip, height=height, fill=colours.edge)] if strip else []
        return [group(kind, box(x, y, whole, height, colours), *edge, *inner.draw(x + PAD + strip, y + PAD))]

    return Block(whole, height, draw)


def framed(kind: str, title: str, inner: Block, colours: Colours) -> Block:
    """Return a block in a frame with a title."""
    heading = written([Line(title, strong=True)])
    width = max(inner.width, heading.width) + 2 * PAD
    height = inner.height + heading.height + 3 * PAD
    inside = heading.height + 2 * PAD

    def draw(x: int, y: int) -> list[Element]:
        return [
            group(
                kind,
                box(x, y, width, height, colours),
                *heading.draw(x + PAD, y + PAD),
                *inner.draw(x + PAD, y + inside),
            )
        ]

    return Block(width, height, draw, inner.ends_at(PAD, inside))


def beside(*blocks: Block) -> Block:
    """Return the blocks in a row."""
    lefts = [sum(block.width + GAP for block in blocks[:number]) for number in range(len(blocks))]
    return _together([(block, left, 0) for block, left in zip(blocks, lefts, strict=True)])


def stacked(*blocks: Block, gap: int = GAP) -> Block:
    """Return the blocks in a column."""
    tops = [sum(block.height + gap for block in blocks[:number]) for number in range(len(blocks))]
    return _together([(block, 0, top) for block, top in zip(blocks, tops, strict=True)])


def flowed(blocks: Sequence[Block]) -> Block:
    """Return the blocks in columns, filled row by row: the number of columns that shows them largest on a screen."""
    arrangements = (
        beside(*(stacked(*blocks[column::columns]) for column in range(columns)))
        for columns in range(1, len(blocks) + 1)
    )
    return min(arrangements, key=lambda block: max(block.width / _ASPECT, block.height), default=stacked())


def svg(title: str, block: Block) -> str:
    """Return a whole picture as text: the title above the block, on white."""
    return etree.tostring(drawn(title, block), encoding="unicode", pretty_print=True)


def drawn(title: str, block: Block) -> Element:
    """Return a whole picture, as `svg`, to be put into a page."""
    width = max(block.width, _width(len(title), _TITLE_FONT)) + 2 * GAP
    top = _TITLE_FONT + 3 * GAP
    height = top + block.height + GAP
    return _element(
        "svg",
        _element("title", title),
        _element("style", _STYLE),
        box(0, 0, width, height, Colours(edge="none")),
        _element("text", title, x=GAP, y=GAP + _TITLE_FONT, class_="title strong"),
        *block.draw(GAP, top),
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
    )


def group(kind: str, *elements: Element) -> Element:
    return _element("g", *elements, class_=kind)


def box(x: int, y: int, width: int, height: int, colours: Colours) -> Element:
    dashes = {"stroke_dasharray": "5 3"} if colours.dashed else {}
    return _element("rect", x=x, y=y, width=width, height=height, fill=colours.box, stroke=colours.edge, **dashes)


def path(*corners: tuple[int, int]) -> Element:
    """Return a line through these corners."""
    return _element("path", d="M" + " L".join(f"{x},{y}" for x, y in corners))


def curve(start: tuple[int, int], end: tuple[int, int], colour: str, *, between: tuple[int, int]) -> Element:
    """Return a line in `colour` that goes up or down between the two x of `between` and is level outside."""
    (x, y), (to_x, to_y), (left, right) = start, end, between
    middle = (left + right) // 2
    corners = f"M{x},{y} L{left},{y} C{middle},{y} {middle},{to_y} {right},{to_y} L{to_x},{to_y}"
    return _element("path", d=corners, class_="curve", style=f"stroke: {colour}")


def text(x: int, baseline: int, line: Line) -> Element:
    strong = {"class_": "strong"} if line.strong else {}
    return _element("text", line.text, x=x + _width(line.indent, _FONT), y=baseline, **strong)


def _width(letters: int, font: int) -> int:
    return math.ceil(letters * font * _LETTER)


def _together(placed: Sequence[tuple[Block, int, int]]) -> Block:
    def draw(x: int, y: int) -> list[Element]:
        return [element for block, left, top in placed for element in block.draw(x + left, y + top)]

    return Block(
        max((left + block.width for block, left, _ in placed), default=0),
        max((top + block.height for block, _, top in placed), default=0),
        draw,
        {name: end for block, left, top in placed for name, end in block.ends_at(left, top).items()},
    )


def _element(tag: str, *children: Element | str, **attributes: str | int) -> Element:
    """Return an element; attributes are spelled as Python can: `class_`, `stroke_dasharray`."""
    return _E(tag, *children, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()})
