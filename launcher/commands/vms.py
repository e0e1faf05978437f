"""The VMs that a command is about, and what their user wants to know of how they were read."""

from pathlib import Path

from launcher.commands.answers import say_notes
from launcher.manifest.reading import Given, read_every, read_given
from program.problem import one_line


def one_vm(path: Path, name: str | None, instancetype: Path | None, preference: Path | None) -> Given:
    return _told((read_given(path, name, _types(instancetype, preference)),))[0]


def every_vm(path: Path, name: str | None, instancetype: Path | None, preference: Path | None) -> tuple[Given, ...]:
    return _told(read_every(path, name, _types(instancetype, preference)))


def _types(instancetype: Path | None, preference: Path | None) -> dict[str, Path]:
    files = {"instancetype": instancetype, "preference": preference}
    return {field: file for field, file in files.items() if file is not None}


def _told(vms: tuple[Given, ...]) -> tuple[Given, ...]:
    say_notes([one_line(note) for given in vms for note in given.notes])
    return vms
