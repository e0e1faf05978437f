"""Cards that an operator took out of service. `kubectl gpuvm cordon` writes them into one ConfigMap of the cluster,
which every plugin mounts, and which the map reads.

A card is a key, `gpu-1.0000-41-00.0`: the node, and the PCI address without colons, which a key cannot have. The key
alone decides: if its value is not our JSON, only who did it is unknown.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from pci.address import PCIAddress

#: The ConfigMap's name, in the plugin's namespace (deploy/plugin/cordons.yaml).
CONFIG_MAP = "gpu-plugin-cordons"

_KEY = re.compile(r"(.+)\.([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2}\.[0-7])")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\dZ")
_LONGEST = 200  # characters of a text


@dataclass(frozen=True, slots=True)
class Cordon:
    """Who took a card out of service, since when (`2026-11-29T18:20:00Z`), and why; "" if unknown."""

    by: str = ""
    since: str = ""
    why: str = ""

    @property
    def by_whom(self) -> str:
        return f"by {self.by or 'nobody knows whom'}"

    def __str__(self) -> str:
        since = _TIME.sub(r"on \1 \2 UTC", self.since)
        why = f"({self.why})" if self.why else ""
        return " ".join(filter(None, (self.by_whom, since, why)))

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def key_of(node: str, address: PCIAddress) -> str:
    """Return the key of a node's card."""
    return f"{node}.{str(address).replace(':', '-')}"


def card_of(key: str) -> tuple[str, PCIAddress] | None:
    """Return the node and the card of a key; None for another key."""
    if (match := _KEY.fullmatch(key)) is None:
        return None
    node, *parts = match.groups()
    return node, PCIAddress.parse(":".join(parts))


def read_cordon(text: str) -> Cordon:
    """Return the cordon of a value; unprintable characters are left out, and a long text is cut."""
    value: object = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    fields = value if isinstance(value, dict) else {}
    return Cordon(*(_text(fields.get(name)) for name in ("by", "since", "why")))


def read_cordons(data: Mapping[str, str]) -> dict[tuple[str, PCIAddress], Cordon]:
    """Return the ConfigMap's cards, ascending, each by its node and address."""
    cards = {card: read_cordon(text) for key, text in data.items() if (card := card_of(key)) is not None}
    return dict(sorted(cards.items()))


def _text(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(each for each in text if each.isprintable())[:_LONGEST]
