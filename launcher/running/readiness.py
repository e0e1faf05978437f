"""The file that the pod's readiness probe looks for: there exactly while the guest runs.

Not while it is being started, nor while it is paused, by whomever: a paused guest answers nobody.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.paths import READY

_NAME = Path(READY).name


@contextmanager
def readiness(root: Path) -> Iterator[Callable[[bool], None]]:
    """Say whether the guest runs, within; afterwards it does not. The file is in the root of the embedded driver."""
    file = root / _NAME

    def say(runs: bool) -> None:
        if runs:
            file.touch()
        else:
            file.unlink(missing_ok=True)

    say(False)  # a launcher that was killed may have left it
    try:
        yield say
    finally:
        say(False)
