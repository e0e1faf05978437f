"""What may become of a state file, by power losses, other versions and hands."""

import json
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plugin.dra.checkpoint import _checksum
from plugin.node.snapshot import Snapshot
from program.problem import Problem
from tests.plugin.test_problems import assert_is_documented

#: Puts something in the place of a file that had this text.
Break = Callable[[Path, str], None]

_ANOTHER_BOOT = '"boot": "another"'


def _text(change: Callable[[str], str | bytes]) -> Break:
    def write(file: Path, text: str) -> None:
        new = change(text)
        file.write_bytes(new if isinstance(new, bytes) else new.encode())

    return write


def _document(change: Callable[[dict[str, Any]], object]) -> Break:
    def write(text: str) -> str:
        document = json.loads(text)
        change(document)
        if "checksum" in document:
            document["checksum"] = _checksum(document)
        return json.dumps(document)

    return _text(write)


def _entry(document: Any) -> dict[str, Any]:
    """The first object in it that is about one thing; the document itself where that is a mapping alone."""
    todo = [document]
    for value in todo:
        if isinstance(value, dict):
            if value.keys() & {"id", "number", "partition", "namespace"}:
                return value
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    assert isinstance(document, dict)
    return document


def _boot_of(text: str) -> str:
    return f'"boot": "{json.loads(text).get("boot")}"'


def _link(file: Path, text: str) -> None:
    (there := file.with_suffix(".there")).write_text(text)
    file.symlink_to(there)


def _socket(file: Path, _: str) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(file.parent, os.O_RDONLY)  # a socket's path is short
        try:
            one.bind(f"/proc/self/fd/{here}/{file.name}")
        finally:
            os.close(here)


def _device(file: Path, _: str) -> None:
    try:
        os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        file.symlink_to("/dev/zero")


BREAKS: Mapping[str, Break] = {
    "empty": _text(lambda text: ""),
    "torn at once": _text(lambda text: text[:5]),
    "torn in the middle": _text(lambda text: text[: len(text) // 2]),
    "torn at its end": _text(lambda text: text.rstrip()[:-1]),
    "of zeros": _text(lambda text: "\0" * len(text)),
    "torn, then zeros": _text(lambda text: text[: len(text) // 2] + "\0" * (len(text) // 2)),
    "of another type": _text(lambda text: "[]"),
    "no JSON": _text(lambda text: text.replace("{", "(")),
    "of a newer version": _document(lambda document: document.update(later=1)),
    "with a newer version's entry": _document(lambda document: _entry(document).update(later=1)),
    "without a field": _document(lambda document: _entry(document).popitem()),
    "with another kind of value": _document(
        lambda document: _entry(document).update({key: {} for key in [*_entry(document)][:1]})
    ),
    "not UTF-8": _text(lambda text: text.rstrip()[:-1].encode() + b', "\xff": 1}'),
    "too long": _text(lambda text: text + " " * (2 << 20)),
    "too deep": _text(lambda text: text.rstrip()[:-1] + ', "a": ' + "[" * 100_000),
    "of no boot": _document(lambda document: document.pop("boot", document.update(later=1))),
    "of another boot, and no JSON": _text(lambda text: text.replace(_boot_of(text), _ANOTHER_BOOT) + "}"),
    "a link": _link,
    "a FIFO": lambda file, _: os.mkfifo(file),
    "a directory": lambda file, _: file.mkdir(),
    "a device": _device,
    "a socket": _socket,
}
#: Of a file that is about a boot: those that say nothing of this one.
OF_NO_BOOT = frozenset({"empty", "torn at once", "of zeros", "of another type", "of no boot"})
OF_ANOTHER_BOOT = "of another boot, and no JSON"
#: What a crash of the node leaves of a file that is not about a boot.
LOST = frozenset({"empty", "torn at once", "torn in the middle", "torn at its end", "of zeros", "torn, then zeros"})
#: The reason in parentheses: part of it where it is a library's.
REASONS = {
    "empty": "it is empty",
    "torn at once": "it ends too early",
    "torn in the middle": "it ends too early",
    "torn at its end": "it ends too early",
    "of zeros": "it is empty",
    "torn, then zeros": "it ends too early",
    "of a newer version": "it has the field 'later', which this version does not know",
    "with a newer version's entry": "it has the field 'later', which this version does not know",
    "too long": "it is longer than 1 MiB",
    "a link": "it is no regular file",
    "a FIFO": "it is no regular file",
    "a directory": "it is no regular file",
    "a device": "it is no regular file",
    "a socket": "it is no regular file",
}


def break_file(kind: str, file: Path, text: str) -> None:
    """Put a broken file in the place of one with this text, or of what an earlier call put there."""
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    file.unlink(missing_ok=True)
    BREAKS[kind](file, text)


def assert_all_else_is_healthy(snapshot: Snapshot, *unhealthy: str) -> None:
    """Only these devices are unhealthy, and there are others."""
    assert {device.id for device in snapshot.inventory.offered if snapshot.reason(device) is not None} == {*unhealthy}
    assert len(snapshot.inventory.offered) > len(unhealthy)
    for device_id in unhealthy:
        reason = snapshot.reason(snapshot.inventory.by_id[device_id])
        assert reason is not None
        assert_is_documented(Problem(device_id, reason.wrong, reason.fix))
