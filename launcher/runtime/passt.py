"""A program of our own that libvirt finds where it looks for passt (launcher.network.passt says what is in it)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from program.errors import Refusal

_DIRECTORY = "bin"


def look_here_first(root: Path) -> None:
    """Have programs that libvirt's embedded driver in `root` calls looked up in a directory of ours first.

    Before there is a thread of libvirt's: the environment is read without a lock.
    """
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    ours = str(root / _DIRECTORY)
    if directories[0] != ours:
        os.environ["PATH"] = os.pathsep.join((ours, *directories))


@contextmanager
def called_for_passt(root: Path, script: str) -> Iterator[None]:
    """libvirt's embedded driver in `root` calls this script for passt, within."""
    program = root / _DIRECTORY / "passt"
    try:
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(script)
        program.chmod(0o700)
    except OSError as error:
        raise Refusal(
            program,
            f"cannot be written: {error.strerror}",
            "expected a directory that can be written, name one with --connect",
        ) from error
    try:
        yield
    finally:
        program.unlink(missing_ok=True)
