"""What several commands read by their flags."""

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from plugin.cards.config import Config
from plugin.question import ask

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
    return ask(read, sysfs, *arguments, **named)[0]
