"""Logs a lasting trouble of repeated attempts once."""

import logging


class Trouble:
    """Logs `wrong` when an attempt's trouble differs from that of the attempt before, and `over` when it has none."""

    def __init__(self, log: logging.Logger, level: int, wrong: str, over: str | None = None) -> None:
        self._log, self._level, self._wrong, self._over = log, level, wrong, over
        self._last: str | None = None

    def tell(self, trouble: object) -> None:
        """Take the trouble of an attempt; None if it succeeded."""
        last, self._last = self._last, None if trouble is None else str(trouble)
        if self._last == last:
            return
        if self._last is not None:
            self._log.log(self._level, "%s: %s", self._wrong, self._last)
        elif self._over is not None:
            self._log.info(self._over)
