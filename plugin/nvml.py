"""The UUIDs and names that NVML has for NVIDIA's cards.

Only NVIDIA's driver knows a card's UUID, and only while it has the card, so `bind` keeps the driver's facts:

    {"0000:41:00.0": {"id": "10de:20b2", "board": "10de:1463", "above": "pci0000:40 0000:40:01.1", "serial": "",
                      "uuid": "GPU-8dcd427f-...", "name": "NVIDIA A100-SXM4-80GB"}}

An entry belongs to a card if model, board and the bridges above are still the same: buses get other numbers when a card
comes or goes, and a server has many cards of one model. Linux 6.18 and newer tell the serial number of some cards,
which has to be the same too. Without a serial number, a card of the same model in the same slot counts as the former
card.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pci.address import PCIAddress
from pci.host import Function
from pci.sysfs.attribute import CannotLook, Unreadable, text
from pci.sysfs.functions import DEVICES
from plugin.state_files import Broken, NewerVersion, StateFile
from program.errors import Refusal
from program.problem import Problem

DRIVER = "nvidia"

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[!-~]([ -~]{0,126}[!-~])?")


class Identity(NamedTuple):
    """A card's UUID, `GPU-8dcd427f-...`, and its name; None if unknown."""

    uuid: str | None
    name: str | None


UNKNOWN = Identity(None, None)


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities of NVIDIA's cards, by their GPUs' addresses; and the trouble that kept others from being known."""

    by_address: Mapping[PCIAddress, Identity] = field(default_factory=dict)
    trouble: Problem | None = None


class Information(NamedTuple):
    """The contents of the driver's file of a card: the number of its device file, and its identity."""

    minor: int | None
    identity: Identity


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry of the file. All are texts, empty if unknown."""

    id: str
    board: str
    above: str
    serial: str
    uuid: str
    name: str

    def is_of(self, card: "_Kept") -> bool:
        return (self.id, self.board, self.above) == (card.id, card.board, card.above) and (
            self.serial == card.serial or "" in (self.serial, card.serial)
        )


def read_information(proc: Path) -> dict[str, Information]:
    """Return the information that NVIDIA's driver has on each of its cards, by address.

    From driver/nvidia/gpus/0000:01:00.0/information: `Model: 		 NVIDIA A100-SXM4-80GB`, `Device Minor: 	 0`, and
    `GPU UUID: 	 GPU-8dcd427f-...`, which has question marks or is missing until somebody has used the card.
    """
    cards = {}
    for file in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # the driver has released the card
        driver = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        minor, uuid, name = (driver.get(each, "") for each in ("Device Minor", "GPU UUID", "Model"))
        identity = Identity(uuid if _UUID.fullmatch(uuid) else None, name if _NAME.fullmatch(name) else None)
        is_number = minor.isascii() and minor.isdecimal()
        cards[file.parent.name] = Information(int(minor) if is_number else None, identity)
    return cards


def read_identities(sys: Path, functions: Iterable[Function], *, proc: Path, state: Path) -> Identities:
    """Return the known identities of these functions: the driver's, and the kept ones where it does not tell them. For
    Reader.ask; `sys` stands for /sys, `proc` for /proc."""
    trouble: Problem | None = None
    driver: Mapping[str, Information] = {}
    kept: Mapping[str, _Kept] = {}
    try:
        driver = read_information(proc)
    except Unreadable as silent:
        trouble = Problem(silent.fault.path, silent.fault.wrong, "the driver's own log (dmesg) may say why")
    try:
        kept = _file(state).read() or {}
    except Refusal as error:
        trouble = error.problem
    places = {each.identity.uuid: address for address, each in driver.items()}
    known = {}
    for function in functions:
        address = str(function.address)
        before, reading = kept.get(address), driver.get(address)
        now = reading.identity if reading is not None and function.driver == DRIVER else UNKNOWN
        # A card that the driver has in another slot is not in this one.
        if (
            before is not None
            and places.get(before.uuid, address) == address
            and before.is_of(_card(sys, function, now))
        ):
            now = Identity(now.uuid or before.uuid or None, now.name or before.name or None)
        if any(now):
            known[function.address] = now
    return Identities(known, trouble)


def keep(sys: Path, functions: Iterable[Function], *, proc: Path, state: Path) -> None:
    """Write the driver's identities of these functions to the file; Refusal if it cannot be written. A broken file
    stays as it is: each look at the node reports it, and no card waits for its UUID."""
    functions, file = tuple(functions), _file(state)
    known = read_identities(sys, functions, proc=proc, state=state).by_address
    new = {str(each.address): _card(sys, each, known[each.address]) for each in functions if each.address in known}
    moved = {each.uuid for each in new.values() if each.uuid}
    try:
        old = file.recover() or {}
    except Broken:
        return
    others = {address: each for address, each in old.items() if address not in new and each.uuid not in moved}
    if (kept := {**others, **new}) != old:
        file.write(dict(sorted(kept.items())))


def _card(sys: Path, function: Function, known: Identity) -> _Kept:
    try:
        serial = text(sys, f"{DEVICES}/{function.address}/serial_number")
    except CannotLook:
        raise
    except Unreadable:
        serial = None  # a sleeping card does not tell it
    above = " ".join((function.root, *map(str, function.bridges)))
    uuid, name = known
    return _Kept(function.pci_id, function.subsystem_id, above, serial or "", uuid or "", name or "")


def _file(state: Path) -> StateFile[Mapping[str, _Kept]]:
    return StateFile(
        path=state / "nvml.json",
        of=_read,
        wrong="is not what bind wrote",
        fix="remove it, and bind keeps UUIDs anew of cards that NVIDIA's driver has",
    )


def _read(text: bytes) -> Mapping[str, _Kept]:
    """Read the file without pydantic, which every look at the node would import; ValueError if it is malformed."""
    try:
        document = json.loads(text)
        for card in document.values():
            for name in card.keys() - set(_Kept.__slots__):
                raise NewerVersion(f"the field {name!a}")
        kept = {address: _Kept(**card) for address, card in document.items()}
    except (AttributeError, TypeError):
        raise ValueError("it has other fields") from None
    for address, card in kept.items():
        PCIAddress.parse(address)
        texts = [getattr(card, name) for name in _Kept.__slots__]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("it has other values")
        if not re.fullmatch(f"({_UUID.pattern})?", card.uuid) or not re.fullmatch(f"({_NAME.pattern})?", card.name):
            raise ValueError("it has another kind of UUID or name")
    return kept
