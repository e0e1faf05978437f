"""Reads the config of NVIDIA's vgpu-device-manager: the key `config.yaml` of the ConfigMap
`default-vgpu-devices-config`.

    version: v1
    vgpu-configs:
      A10-4Q:
      - devices: all                    # or numbers of NVIDIA's GPUs, by address
        device-filter: "0x223610DE"     # device and vendor; one or a list; none is any
        vgpu-devices: {A10-4Q: 6}

The forms are those of api/spec/v1 in NVIDIA/vgpu-device-manager, as of acb72704.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pci.functions import is_gpu
from pci.host import Function, Host
from pci.vendors import NVIDIA
from plugin.cards.vgpu_rules import VGPURule
from program.document import NotYAML, decoded, read_document
from program.errors import Nonsense, UserError
from program.input import read_input_bytes
from program.problem import summary

_LARGEST = 1 << 20  # as a ConfigMap
_FORM = "expected vgpu-configs as vgpu-device-manager reads them"


def rules_of(path: Path, name: str, host: Host) -> tuple[VGPURule, ...]:
    """Return the rules of the configuration `name` for the cards of `host`; UserError for a file that is no such
    config, lacks this configuration, or asks two things of one card."""
    configs = _configs(path)
    if name not in configs:
        raise UserError(path, f"has no configuration {name!r}", f"expected one of {summary(map(str, configs), 20)}")
    cards = [one for one in host.functions.values() if one.vendor_id == NVIDIA and is_gpu(one) and not one.is_virtual]
    wanted: dict[str, VGPURule | None] = {}
    for number, entry in enumerate(configs[name] if isinstance(configs[name], list) else [configs[name]]):
        place = f"vgpu-configs.{name}.{number}"
        types = _types(path, place, entry)
        for card in _cards(path, place, entry, cards):
            address = str(card.address)
            if address in wanted:
                raise UserError(path, f"{place}: {address} has an entry already", "expected one for each card")
            try:
                wanted[address] = VGPURule(address=address, types=types) if types else None
            except Nonsense as nonsense:
                raise UserError(path, f"{place}: {nonsense.wrong}", nonsense.fix) from None
    return tuple(rule for rule in wanted.values() if rule is not None)


def _configs(path: Path) -> Mapping[str, Any]:
    try:
        document = read_document(decoded(read_input_bytes(path, _LARGEST, _FORM)))
    except NotYAML as error:
        raise UserError(f"{path}{error.place}", error.wrong, error.fix or _FORM) from error
    configs = document.get("vgpu-configs") if isinstance(document, dict) else None
    if not isinstance(configs, dict):
        raise UserError(path, "has no vgpu-configs", _FORM)
    return configs


def _cards(path: Path, place: str, entry: Any, cards: list[Function]) -> Iterator[Function]:
    devices = entry.get("devices") if isinstance(entry, dict) else None
    if devices != "all" and not (isinstance(devices, list) and all(type(one) is int for one in devices)):
        raise UserError(path, f"{place}: found devices {devices!r}", "expected all, or numbers of GPUs from 0")
    if devices != "all" and (unknown := [one for one in devices if not 0 <= one < len(cards)]):
        raise UserError(path, f"{place}: there is no GPU {unknown[0]}", f"this node has {len(cards)}, from 0 on")
    filters = entry.get("device-filter") or []
    filters = filters if isinstance(filters, list) else [filters]
    for one in filters:
        if not re.fullmatch("0x[0-9a-fA-F]{8}", str(one)):
            raise UserError(
                path, f"{place}: found device-filter {one!r}", "expected device and vendor, like 0x223610DE"
            )
    ids = {int(one, 16) for one in filters}
    for number, card in enumerate(cards):
        if (devices == "all" or number in devices) and (not ids or card.device_id << 16 | card.vendor_id in ids):
            yield card


def _types(path: Path, place: str, entry: Any) -> Mapping[str, int]:
    types = entry.get("vgpu-devices") if isinstance(entry, dict) else None
    if not isinstance(types, dict) or not all(isinstance(k, str) and type(v) is int for k, v in types.items()):
        raise UserError(path, f"{place}: found vgpu-devices {types!r}"[:200], "expected how many of each type")
    return {name: count for name, count in types.items() if count}
