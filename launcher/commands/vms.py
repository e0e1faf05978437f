"""The VMs that a command is about, and what their user wants to know of how they were read."""

from collections.abc import Mapping
from pathlib import Path

from launcher.commands.answers import say_notes
from launcher.commands.options import VMFlags
from launcher.manifest.identity import Known, known_in
from launcher.manifest.parser import Given, read_every, read_given
from program.problem import one_line


def one_vm(flags: VMFlags, environ: Mapping[str, str]) -> Given:
    """Read the VM that the flags name; `environ` are the variables of its pod."""
    known = known_in(environ, flags.namespace)
    return _told((read_given(flags.vm, flags.name, _types(flags), known),))[0]


def every_vm(flags: VMFlags, suffix: str) -> tuple[Given, ...]:
    """Read all VMs that the flags name. One with a generateName alone has the suffix behind it."""
    known = Known(flags.namespace or None, suffix=suffix)
    return _told(read_every(flags.vm, flags.name, _types(flags), known))


def _types(flags: VMFlags) -> dict[str, Path]:
    files = {"instancetype": flags.instancetype, "preference": flags.preference}
    return {field: file for field, file in files.items() if file is not None}


def _told(vms: tuple[Given, ...]) -> tuple[Given, ...]:
    say_notes([one_line(note) for given in vms for note in given.notes])
    return vms
