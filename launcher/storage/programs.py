"""Other packages' programs that make images: they run for some milliseconds and leave no memory behind."""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from program import child
from program.errors import Refusal

_PATIENCE = 60.0  # seconds; they take milliseconds

_NOTHING: Mapping[str, str] = MappingProxyType({})


def output(
    command: Sequence[str | os.PathLike[str]],
    *,
    package: str,
    given: bytes = b"",
    environ: Mapping[str, str] = _NOTHING,
) -> bytes:
    """What the program prints, with `given` on its standard input and `environ` over this process's environment.

    Refusal, in the program's own words, where it fails; with `package`, Debian's, where it is not there.
    """
    name = command[0]
    try:
        done = child.output(command, within=_PATIENCE, given=given, environ={**environ, "LC_ALL": "C.UTF-8"})
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
