"""This node's cards that are out of service, from the files of a ConfigMap (pci.cordons)."""

from collections.abc import Mapping
from pathlib import Path

from pci.address import PCIAddress
from pci.cordons import Cordon, card_of, read_cordon
from program.errors import Refusal

_LONGEST = 4096  # bytes of a value


def cordons_of(node: str, directory: Path) -> Mapping[PCIAddress, Cordon]:
    """Return the node's cards that are out of service, by address; Refusal if the directory cannot be read. A card
    whose file cannot be read counts as out of service."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        fix = "mount the ConfigMap gpu-plugin-cordons there, as deploy/plugin does"
        raise Refusal(f"--cordons {directory}", f"cannot be read: {error.strerror}", fix) from error
    cards = {name: card[1] for name in names if (card := card_of(name)) is not None and card[0] == node}
    return {address: read_cordon(_text(directory / name)) for name, address in cards.items()}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST).decode(errors="replace")
    except OSError:
        return ""
