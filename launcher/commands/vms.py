"""The VMs that a command is about, and what their user wants to know of how they were read."""

from pathlib import Path

from launcher.commands.answers import say_notes
from launcher.commands.options import VMFlags
from launcher.manifest.parser import Given, read_every, read_given
from program.problem import one_line


def one_vm(flags: VMFlags) -> Given:
    return _told((read_given(flags.vm, flags.name, _types(flags)),))[0]


def every_vm(flags: VMFlags) -> tuple[Given, ...]:
    return _told(read_every(flags.vm, flags.name, _types(flags)))


def _types(flags: VMFlags) -> dict[str, Path]:
    files = {"instancetype": flags.instancetype, "preference": flags.preference}
    return {field: file for field, file in files.items() if file is not None}


def _told(vms: tuple[Given, ...]) -> tuple[Given, ...]:
    say_notes([one_line(note) for given in vms for note in given.notes])
    return vms
