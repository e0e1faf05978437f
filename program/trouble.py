"""A trouble that lasts, of something that is tried again and again: the log has it once."""

import logging


class Trouble:
    """Logs what is `wrong` when it is another trouble than at the last try, and `over` when there is none any more."""

    def __init__(self, log: logging.Logger, level: int, wrong: str, over: str | None = None) -> None:
        self._log, self._level, self._wrong, self._over = log, level, wrong, over
        self._last: str | None = None

    def tell(self, trouble: object) -> None:
        """Take what came of a try; None where all is well."""
        last, self._last = self._last, None if trouble is None else str(trouble)
        if self._last == last:
            return
        if self._last is not None:
            self._log.log(self._level, "%s: %s", self._wrong, self._last)
        elif self._over is not None:
            self._log.info(self._over)
