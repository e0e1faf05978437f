"""A page for a browser: one HTML file that needs no other, with a content policy that allows nothing but its own parts.

It is built of elements, as pictures are, so no text becomes markup, whatever its origin.
"""

import base64
import hashlib
from dataclasses import dataclass

from lxml import etree
from lxml.builder import E

from drawing.boxes import Element
from program.problem import one_line

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --faint: #595959; --edge: #c4c4c4; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161616; --ink: #e8e8e8; --faint: #a9a9a9; --edge: #4a4a4a; --link: #8ab4f8; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 100rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
p { margin: .25rem 0; }
.faint { color: var(--faint); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page's HTML and the header of its content policy: it loads nothing; only its own style and script count."""

    html: str
    policy: str


def page(title: str, *body: Element, style: str = "", script: str = "", refresh: int | None = None) -> Page:
    """Return a page with these elements in its body. `script` may request only the page's own address; without scripts,
    the page loads anew every `refresh` seconds."""
    head = [
        E.meta(charset="utf-8"),
        E.meta(name="viewport", content="width=device-width, initial-scale=1"),
        E.title(one_line(title)),
        E.link(rel="icon", href="data:,"),  # otherwise a browser asks for /favicon.ico
        E.style(_STYLE + style),
    ]
    if refresh is not None:
        head.append(E.noscript(E.meta({"http-equiv": "refresh", "content": str(refresh)})))
    root = E.html({"lang": "en"}, E.head(*head), E.body(*body, *([E.script(script)] if script else ())))
    policy = _policy(root)
    # A file has no headers.
    in_file = policy.partition("; frame-ancestors")[0]
    root[0].insert(1, E.meta({"http-equiv": "Content-Security-Policy", "content": in_file}))
    text = etree.tostring(root, encoding="unicode", method="html", doctype="<!doctype html>")
    return Page(f"{text}\n", policy)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element; unprintable characters of its texts are escaped. `class_` is spelled as Python can."""
    texts = (one_line(child) if isinstance(child, str) else child for child in children)
    return E(tag, *texts, {name.rstrip("_").replace("_", "-"): one_line(value) for name, value in attributes.items()})


def _policy(root: Element) -> str:
    styles, scripts = (
        " ".join(_hash(each) for each in root.iter(f"{{*}}{tag}")) or "'none'" for tag in ("style", "script")
    )
    return (
        f"default-src 'none'; style-src {styles}; script-src {scripts}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(part: Element) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256((part.text or '').encode()).digest()).decode()}'"
