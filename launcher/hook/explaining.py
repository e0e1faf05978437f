"""What the hook would change in a domain, for a person: its cards, and the lines of XML that differ."""

import difflib

from lxml import etree

from launcher.hook.reading import parsed
from launcher.hook.rewriting import Rewritten
from program.problem import one_line


def explained(domain: bytes, answer: Rewritten) -> str:
    """A line for each card, then the change as `diff -u` has it, of the XML with an element a line."""
    lines = [one_line(line) for line in answer.cards] or ["The domain has no cards, and stays as it is."]
    before, after = _lines(domain), _lines(answer.xml)
    changes = difflib.unified_diff(before, after, "KubeVirt's domain", "the hook's", lineterm="")
    return "\n".join([*lines, "", *changes]).rstrip() + "\n"


def _lines(domain: bytes) -> list[str]:
    root = parsed(domain)
    for element in root.iter():
        # The space between elements, and no text.
        if len(element) and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    etree.indent(root)
    return etree.tostring(root, encoding="unicode").splitlines()
