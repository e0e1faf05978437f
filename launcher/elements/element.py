"""E.disk(E.target(dev="vda"), type="file"): <disk type="file"><target dev="vda"/></disk>.

Written as with lxml.builder's E, and made in three quarters of its time (docs/decisions/0006).
"""

from collections.abc import Callable

from lxml import etree
from lxml.etree import _Element as Element


class _Maker:
    """A function for the name of every element; `E(name, ...)` where Python cannot spell it, or it is computed."""

    def __call__(self, name: str, /, *children: Element | str, **attributes: str) -> Element:
        make: Callable[..., Element] = getattr(self, name)
        return make(*children, **attributes)

    def __getattr__(self, name: str) -> Callable[..., Element]:
        def make(*children: Element | str, **attributes: str) -> Element:
            element = etree.Element(name)
            for attribute, value in attributes.items():
                element.set(attribute, value)
            for child in children:
                if isinstance(child, str):
                    element.text = child
                else:
                    element.append(child)
            return element

        setattr(self, name, make)  # asked for once
        return make


E = _Maker()
