"""What several commands read by their flags."""

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pci.host import Host
from pci.sysfs.asking import ask
from pci.sysfs.attribute import CannotLook
from pci.sysfs.functions import read_host
from plugin.cards.config import Config
from program.errors import Refusal

P = ParamSpec("P")
T = TypeVar("T")


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the one without a file."""
    if path is None:
        return Config()
    # PyYAML is for a file, which most nodes have none of.
    from plugin.config_file import read_config

    return read_config(path)


def asked(sysfs: Path, read: Callable[Concatenate[Path, P], T], *arguments: P.args, **named: P.kwargs) -> T:
    """Read something of that /sys in a process of its own, since the kernel may not answer; Refusal if nothing can be
    read there now."""
    return answered(sysfs, read, *arguments, **named)[0]


def answered(
    sysfs: Path, read: Callable[Concatenate[Path, P], T], *arguments: P.args, **named: P.kwargs
) -> tuple[T, tuple[str, ...]]:
    """The same, and the files that the kernel did not answer for."""
    try:
        return ask(read, sysfs, *arguments, **named)
    except CannotLook as error:
        raise Refusal(*error.words(sysfs)) from error


def host_of(sysfs: Path) -> Host:
    """Read the node of that /sys; Refusal if it is none."""
    return asked(sysfs, read_host)
