"""A program of our own that libvirt finds where it looks for passt (launcher.network.passt says what is in it)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from program.errors import Refusal

_DIRECTORY = "bin"


@contextmanager
def called_for_passt(root: Path, script: str) -> Iterator[None]:
    """libvirt's embedded driver in `root` calls this script for passt, within: PATH begins with its directory."""
    directory, path = root / _DIRECTORY, os.environ.get("PATH", os.defpath)
    program = directory / "passt"
    try:
        directory.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(script)
        program.chmod(0o700)
    except OSError as error:
        raise Refusal(
            program, f"cannot be written: {error.strerror}", "expected a directory that can be written; see --connect"
        ) from error
    os.environ["PATH"] = f"{directory}:{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
        program.unlink(missing_ok=True)
