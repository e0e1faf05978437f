"""Breaks entries of a tree in every way that a file system can be broken, and mends them again."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

NASTY_TEXTS = (
    *("", "\n", " ", "0", "-1\n", "-2\n", "1e3", "0x", "٣\n", "²", "nan", "None", "1" * 5000, "9" * 19, "(null)\n"),
    *("DRIVER=\n", "PCI_CLASS=30000\nPCI_ID=10DE:2204\nPCI_SUBSYS_ID=10DE:2204\n", "PCI_ID=10DE\n", "a: b\n: c\n1:\n"),
    *("0000:41:00.0 0000:41:00.0\n", "0000:41:00.8", "ffffffff:ff:1f.7\n", "0x0 0x0\n", "0xffff 0x0 0x1\n" * 7, "D0\n"),
)
NASTY_LINKS = (
    "nowhere",
    ".",
    "..",
    "/",
    "/dev/null",
    "a" * 200,
    "../0000:41:00.1",
    "../../x/7",
    "7",
    "²",
    "-1",
    "9" * 30,
)


@dataclass(frozen=True)
class Break:
    """What becomes of an entry: nothing is there, a file with this content, one of this size, a directory, a link to
    there or to itself, or what was there without a permission."""

    path: str
    way: str
    content: bytes = b""
    target: str = ""


def breaks(paths: Iterable[str]) -> st.SearchStrategy[list[Break]]:
    """One to three breaks of these paths, which need not exist."""
    path = st.sampled_from(sorted(paths))
    contents = st.sampled_from(NASTY_TEXTS).map(str.encode) | st.binary(max_size=40)
    return st.lists(
        st.builds(Break, path, st.sampled_from(["missing", "huge", "directory", "full", "circle", "forbidden"]))
        | st.builds(Break, path, st.just("file"), content=contents)
        | st.builds(Break, path, st.just("link"), target=st.sampled_from(NASTY_LINKS)),
        min_size=1,
        max_size=3,
    )


@contextmanager
def broken(tree: Path, found: Iterable[Break]) -> Iterator[None]:
    """The tree with these breaks, as far as there is still a place for each."""
    with ExitStack() as stack:
        for number, one in enumerate(found):
            path = tree / one.path
            # An earlier break may have taken its place, or be a link to the machine's own root.
            if path.parent.is_dir() and path.parent.resolve().is_relative_to(tree.resolve()):
                stack.enter_context(_broken(path, tree / f"aside-{number}", one))
        yield


@contextmanager
def _broken(path: Path, aside: Path, one: Break) -> Iterator[None]:
    if one.way == "forbidden":
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None:
            path.chmod(0)
        try:
            yield
        finally:
            if mode is not None:
                path.chmod(mode)
        return
    there = os.path.lexists(path)
    if there:
        path.rename(aside)
    match one.way:
        case "file":
            path.write_bytes(one.content)
        case "huge":
            path.touch()
            os.truncate(path, 1 << 30)
        case "directory":
            path.mkdir()
        case "full":
            (path / "0000:41:00.0").mkdir(parents=True)
            (path / "vfio").write_bytes(b"\xff")
        case "link":
            path.symlink_to(one.target)
        case "circle":
            path.symlink_to(path.name)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if there:
            aside.rename(path)
