"""The daemon's log: lines for a person at a terminal, JSON for everything else."""

import logging
import sys


def start_logging() -> None:
    """Log to standard error: what happened, and in JSON also the device, resource and reason as fields."""
    handler = logging.StreamHandler()
    if sys.stderr is not None and sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    else:
        from pythonjsonlogger.json import JsonFormatter

        handler.setFormatter(
            JsonFormatter(
                "%(asctime)s %(levelname)s %(message)s",
                rename_fields={"asctime": "time", "levelname": "level"},
                datefmt="%Y-%m-%dT%H:%M:%S%z",
                json_ensure_ascii=False,
            )
        )
    handler.addFilter(_as_a_line)
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _as_a_line(record: logging.LogRecord) -> bool:
    """Let every record pass, but without a traceback where grpc has one for what a client did: it went at the moment it
    was answered, or has sent what is no message (_handle_exceptions in grpc's aio/server.pyx.pxi).

    A kubelet may go; the end of its stream is noticed, and logged where it matters.
    """
    if record.name.startswith("grpc.") and record.exc_info:
        error = record.exc_info[1]
        if type(error).__name__ == "ExecuteBatchError":
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        elif type(error).__name__ == "DecodeError":
            record.exc_info = None
            record.msg, record.args = "refused what is no message: %s", (error,)
    return True
