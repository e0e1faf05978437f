"""The log of a long-running program, on standard error: a line for each record, for people or as JSON."""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TextIO, get_args

from program.bootstrap import values_of
from program.flags import Flag
from program.problem import Severity, one_line
from program.terminal import is_coloured, painted

_FORMAT, _LEVEL = "--log-format", "--log-level"
_Level = Literal["debug", "info", "warning", "error"]
_OURS = ("launcher", "plugin", "program")
_SEVERITIES = {None: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}
#: The attributes of every record; others are the caller's fields.
_COMMON = {*vars(logging.makeLogRecord({})), "message", "taskName"}


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """The flags of a program's log, for its help and to refuse wrong values: start_logging() reads them before the
    command line is parsed, since errors of the command line are in the log too."""

    log_format: Annotated[Literal["text", "json"], Flag("Log lines for people, or a JSON object a line.")] = "text"
    log_level: Annotated[_Level, Flag("Log nothing below this.")] = "info"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The flags that differ from their defaults, for the command line of another program."""
        flags = ((_FORMAT, self.log_format, LogFlags.log_format), (_LEVEL, self.log_level, LogFlags.log_level))
        return tuple(f"{name}={value}" for name, value, default in flags if value != default)


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's)
        return one_line(super().formatMessage(record))


class _JSON(_Text):
    def format(self, record: logging.LogRecord) -> str:
        import json  # a log of text does not need it

        parts = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        parts |= {name: value for name, value in vars(record).items() if name not in _COMMON}
        if record.exc_info:
            parts["exc_info"] = self.formatException(record.exc_info)
        return json.dumps(parts, ensure_ascii=False, default=str)


def start_logging(arguments: Sequence[str]) -> "logging.StreamHandler[TextIO]":
    """Log to standard error as these arguments say: the format and level of LogFlags, by default text from INFO on.

    Records of other libraries below INFO are left out at every level. Return the handler, the same one every time.
    """
    if (known := _handler()) is not None:
        return known
    named, level = (next(reversed(values_of(flag, arguments)), "") for flag in (_FORMAT, _LEVEL))
    handler = logging.StreamHandler()
    handler.setFormatter(_JSON() if named == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    lowest = level.upper() if level in get_args(_Level) else "INFO"
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[lowest]))
    for name in _OURS:
        logging.getLogger(name).setLevel(lowest)
    return handler


def json_handler() -> "logging.StreamHandler[TextIO] | None":
    """Return the handler of the log if that is JSON."""
    handler = _handler()
    return handler if handler is not None and isinstance(handler.formatter, _JSON) else None


def _handler() -> "logging.StreamHandler[TextIO] | None":
    handlers = (each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler))
    return next((handler for handler in handlers if isinstance(handler.formatter, _Text)), None)


def log_or_print(program: str, line: str, severity: Severity | None = None) -> None:
    """Log a line, by default as an error; print it after the names of program and severity if no log is started."""
    if _handler() is not None:
        logging.getLogger(program).log(_SEVERITIES.get(severity, logging.INFO), "%s", line)
        return
    word = "" if severity is None else painted(f"{severity.word}:", severity, coloured=is_coloured(2)) + " "
    print(f"{program}: {word}{line}", file=sys.stderr)
