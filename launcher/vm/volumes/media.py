"""The files that a guest needs: made before its domain is defined, and removed after its end.

This module knows no manifests, so that the process that stays beside the guest imports nothing that reads them.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from launcher.vm.volumes.images import (
    ISO,
    OtherFiles,
    becomes_guests,
    is_qcow2,
    make_empty,
    make_overlay,
    refuse_other_files,
    write_iso,
)
from launcher.vm.volumes.places import directory, keeping_file, link, refuse_all_but_files, regular_file, renewed, sized
from program.errors import Refusal


@dataclass(frozen=True, slots=True)
class Medium:
    """An ISO, made anew at every start, since its files may have changed."""

    path: Path
    iso: ISO


@dataclass(frozen=True, slots=True)
class Content:
    """A file with this content, made anew at every start."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True)
class EmptyImage:
    """An empty qcow2 image of `size` bytes, which lives as long as the pod; unless it `stays`, as long as the VM."""

    path: Path
    size: int
    stays: bool = True


@dataclass(frozen=True, slots=True)
class Overlay:
    """A qcow2 image over `below`, which is not written to. The overlay lives as long as the pod; unless it `stays`, as
    long as the VM."""

    path: Path
    below: Path
    kind: Literal["raw", "qcow2"]
    stays: bool = True


@dataclass(frozen=True, slots=True)
class RawDisk:
    """A sparse file of `size` bytes, never removed. A file that has content stays as it is."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Symlink:
    path: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Directory:
    path: Path


@dataclass(frozen=True, slots=True)
class Brought:
    """A file that the volume mounted at `volume` brings, and nobody makes. Errors name it as `whose` file.

    `fix`: what to do if QEMU cannot read it, "" for a disk, of which launcher.vm.volumes.checks says more. `is_guests`:
    whether it is a raw disk to which the guest may write.
    """

    path: Path
    volume: Path
    whose: str
    fix: str = ""
    is_guests: bool = False


@dataclass(frozen=True, slots=True)
class StateFiles:
    """A directory of a volume in which libvirt or swtpm keeps files from one start to the next. Errors name it as
    `whose`; only regular files may be there."""

    path: Path
    whose: str


@dataclass(frozen=True, slots=True)
class Share:
    """A volume of that `name`, whose `directory` virtiofsd serves to QEMU on the `socket`. Nothing is made of it."""

    name: str
    directory: Path
    socket: Path
    read_only: bool


Need = Medium | Content | EmptyImage | Overlay | RawDisk | Symlink | Directory | Brought | StateFiles


class Needs(NamedTuple):
    """Files in the order in which they are made; and an error for each that lacks something of the pod, the claim or
    the node."""

    needs: tuple[Need, ...]
    refusals: tuple[Refusal, ...]


@contextmanager
def making_media(needs: Iterable[Need]) -> Iterator[None]:
    """Make everything, in this order; files are readable for their owner alone.

    Afterwards media, links, directories and images that do not stay are removed. Empty disks and overlays to which the
    guest has written stay otherwise, for the next start in the same pod; raw disks always stay. Raise Refusal if
    something cannot be made; then nothing is left of what was made before.
    """
    with ExitStack() as stack:
        for need in needs:
            stack.enter_context(_there(need))
        yield


def refuse_links(needs: Iterable[Need]) -> None:
    """Raise Refusal if a file that a volume brings is no longer one of its regular files: the volume's owner may have
    replaced it since the VM was planned."""
    for need in needs:
        if isinstance(need, Brought):
            regular_file(need.whose, need.path, need.volume)
        if isinstance(need, StateFiles):
            refuse_all_but_files(need.whose, need.path)


def _there(need: Need) -> AbstractContextManager[None]:
    match need:
        case Medium():
            return renewed(need.path, partial(write_iso, need.iso))
        case Content():
            return renewed(need.path, partial(_write, need.content))
        case EmptyImage():
            return _image(need, partial(make_empty, size=need.size), OtherFiles())
        case Overlay():
            others = OtherFiles(str(need.below), need.kind)
            return _image(need, partial(make_overlay, below=need.below, kind=need.kind), others)
        case RawDisk():
            sized(need.path, need.size)
            return nullcontext()
        case Symlink():
            return link(need.path, need.target)
        case Directory():
            return directory(need.path)
        case Brought(is_guests=True):
            becomes_guests(regular_file(need.whose, need.path, need.volume))
            return nullcontext()
        case Brought() | StateFiles():
            refuse_links((need,))
            return nullcontext()


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _image(
    image: EmptyImage | Overlay, fill: Callable[[Path], None], others: OtherFiles
) -> AbstractContextManager[None]:
    """Make the image; one that stays only if no earlier start in this pod has left it: then it is the guest's disk. It
    is checked, since a QEMU that a guest has taken over could write to it as a file."""
    path = image.path
    if not image.stays:
        return renewed(path, fill)
    if os.path.lexists(path):
        if not (stat.S_ISREG(path.lstat().st_mode) and is_qcow2(path)):
            raise Refusal(path, "is there and is no qcow2 image", "take it away, the guest's disk is made there")
        refuse_other_files(path, others)
    return keeping_file(path, fill)
