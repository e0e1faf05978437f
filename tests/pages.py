"""Pages read back: what they say of each device, and that they can load and run nothing else."""

import base64
import hashlib
from typing import NamedTuple

from lxml import etree, html


class Shown(NamedTuple):
    """A device on the node's page."""

    id: str
    state: str
    user: str | None
    reason: str | None


def devices_on(text: str) -> list[Shown]:
    found = []
    for item in html.document_fromstring(text).iter("li"):
        (device_id,), (state,) = item.xpath("./h3/code/text()"), item.xpath("./h3/span/text()")
        lines = [line.text_content() for line in item.iter("p")]
        user = next((line.removeprefix("in use by ") for line in lines if line.startswith("in use by ")), None)
        # It "leaves" behind what a guest does not get, which is no reason.
        its = [line.removeprefix("It ")[:-1] for line in lines if line.startswith("It ")]
        reason = next((each for each in its if not each.startswith("leaves ")), None)
        found.append(Shown(device_id, state, user, reason))
    return found


def assert_closed(text: str, policy: str) -> None:
    """It is whole, asks for no other address, and what could run or change its looks is what the policy allows."""
    assert text.startswith("<!doctype html>")
    root = html.document_fromstring(text)
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        made = {_hash(each) for each in root.iter(tag)}
        assert made == set(allowed[directive].split())
    (in_file,) = root.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    assert policy == f"{in_file}; frame-ancestors 'none'"
    assert root.xpath("//@href | //@src | //@action | //@data | //@srcset") == ["data:,"]
    assert not [
        name for each in root.iter(etree.Element) for name in each.attrib if str(name).startswith(("on", "style"))
    ]


def _hash(part: etree._Element) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256((part.text or '').encode()).digest()).decode()}'"
