"""The file that the pod's readiness probe looks for. It exists while the guest runs, and not while it starts or is
paused: a paused guest answers nobody.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.vm.paths import READY

_log = logging.getLogger(__name__)

_NAME = Path(READY).name


@contextmanager
def readiness(root: Path) -> Iterator[Callable[[bool], None]]:
    """Yield a function that is told whether the guest runs. The file is in the root of the embedded driver."""
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
