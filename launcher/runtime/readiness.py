"""The file that the pod's readiness probe looks for: there exactly while the guest runs.

Not while it is being started, nor while it is paused, by whomever: a paused guest answers nobody.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.paths import READY

_log = logging.getLogger(__name__)

_NAME = Path(READY).name


@contextmanager
def readiness(root: Path) -> Iterator[Callable[[bool], None]]:
    """Say whether the guest runs, within; afterwards it does not. The file is in the root of the embedded driver."""
    file = root / _NAME

    def say(runs: bool) -> None:
        try:
            if runs:
                file.touch()
            else:
                file.unlink(missing_ok=True)
        except OSError as error:  # no reason to end a guest
            _log.error("%s: cannot say there whether the guest runs: %s", file, error.strerror)

    say(False)  # a launcher that was killed may have left it
    try:
        yield say
    finally:
        say(False)
