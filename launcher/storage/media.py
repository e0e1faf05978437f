"""What a guest needs on disk, made before its domain is defined and taken away after its end.

It knows nothing of manifests, so that the process that stays beside the guest needs none of what reads them.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from launcher.storage.iso import ISO, write_iso
from launcher.storage.places import directory, kept, link, renewed, sized
from launcher.storage.qcow2 import is_qcow2, make_empty, make_overlay
from launcher.storage.regular_files import regular_file
from program.errors import Refusal


@dataclass(frozen=True, slots=True)
class Medium:
    """An ISO, made anew at every start: what is in it may have changed."""

    path: Path
    iso: ISO


@dataclass(frozen=True, slots=True)
class EmptyImage:
    """A qcow2 image of `size` bytes, for the life of the pod."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Overlay:
    """A qcow2 image over `below`, which stays as it is, for the life of the pod."""

    path: Path
    below: Path
    kind: Literal["raw", "qcow2"]


@dataclass(frozen=True, slots=True)
class RawDisk:
    """A file of `size` bytes, sparse and for good; one with content stays as it is."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    path: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Directory:
    path: Path


@dataclass(frozen=True, slots=True)
class Brought:
    """Nothing to make, but a file that the volume mounted at `volume` brings; whose, for errors."""

    path: Path
    volume: Path
    whose: str


Need = Medium | EmptyImage | Overlay | RawDisk | Link | Directory | Brought


@contextmanager
def made(needs: Iterable[Need]) -> Iterator[None]:
    """All of it is there within, in that order; files are readable for their owner alone.

    Afterwards media, links and directories are gone. Empty disks and overlays stay, for the next start in the same pod,
    where the guest has written to them; raw disks stay in any case. Refusal, with nothing left of what was made, where
    something cannot be made.
    """
    with ExitStack() as stack:
        for need in needs:
            stack.enter_context(_there(need))
        yield


def refuse_links(needs: Iterable[Need]) -> None:
    """Refusal where a file that a volume brings is none of its regular files; whoever writes to a volume may have
    changed that since its VM was planned."""
    for need in needs:
        if isinstance(need, Brought):
            regular_file(need.whose, need.path, need.volume)


def _there(need: Need) -> AbstractContextManager[None]:
    match need:
        case Medium():
            return renewed(need.path, partial(write_iso, need.iso))
        case EmptyImage():
            return _image(need.path, partial(make_empty, size=need.size))
        case Overlay():
            return _image(need.path, partial(make_overlay, below=need.below, kind=need.kind))
        case RawDisk():
            sized(need.path, need.size)
            return nullcontext()
        case Link():
            return link(need.path, need.target)
        case Directory():
            return directory(need.path)
        case Brought():
            regular_file(need.whose, need.path, need.volume)
            return nullcontext()


def _image(path: Path, fill: Callable[[Path], None]) -> AbstractContextManager[None]:
    """One that an earlier start in this pod has left is the guest's disk."""
    if os.path.lexists(path) and not _is_image(path):
        raise Refusal(path, "is there and is no qcow2 image", "take it away, the guest's disk is made there")
    return kept(path, fill)


def _is_image(path: Path) -> bool:
    try:
        return is_qcow2(path)
    except OSError:
        return False
