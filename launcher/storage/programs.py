"""Programs of other packages that make images: they run for milliseconds and leave no memory behind."""

import os
from collections.abc import Mapping, Sequence

from program import child
from program.errors import Refusal

_PATIENCE = 60.0  # seconds; they take milliseconds


def output(
    command: Sequence[str | os.PathLike[str]],
    *,
    package: str,
    given: bytes = b"",
    environ: Mapping[str, str] | None = None,
) -> bytes:
    """Return what a program prints, with `given` on its standard input and `environ` over this process's environment.

    Raise Refusal in the program's own words if it fails, and with the Debian `package` to install if it is missing.
    """
    name = command[0]
    try:
        done = child.output(command, within=_PATIENCE, given=given, environ={**(environ or {}), "LC_ALL": "C.UTF-8"})
    except FileNotFoundError as error:
        fix = f"install the package {package}"
        raise Refusal(name, "is not installed, and makes the guest's disks", fix) from error
    except child.Late as error:
        raise Refusal(error.problem.subject, error.problem.wrong, "the storage below does not answer") from error
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        ended = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise Refusal(" ".join(map(str, command)), words or ended, f"these words are {name}'s own")
    return done.stdout
