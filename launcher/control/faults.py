"""The log of callers' faults: one line for each, and at most one a second."""

import logging
import time

from program.problem import one_line

_LONGEST = 300  # characters
_EVERY = 1.0  # seconds between two lines: a caller that makes one fault may make thousands


class _OneLine(logging.Filter):
    """Lets one record a second pass, as a line without a traceback, with the number of records left out before it."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self._of = of
        self._next, self._kept_back = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            self._kept_back += 1
            return False
        words = record.getMessage()
        if record.exc_info:
            words += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        left_out = f" ({self._kept_back} lines before it are left out)" if self._kept_back else ""
        record.msg, record.args = f"{self._of}: {one_line(words)[:_LONGEST]}{left_out}", None
        record.exc_info = None
        self._next, self._kept_back = now + _EVERY, 0
        return True


def shorten(of: str, *loggers: str) -> None:
    """Have these loggers together write at most one line a second; it begins with `of`, their subject."""
    lines = _OneLine(of)
    for name in loggers:
        logging.getLogger(name).addFilter(lines)
