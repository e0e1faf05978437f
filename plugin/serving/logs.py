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
    handler.addFilter(_without_the_traceback_of_a_client_that_went)
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _without_the_traceback_of_a_client_that_went(record: logging.LogRecord) -> bool:
    """Let every record pass, but without a traceback if its client has only gone.

    grpc logs an error and a traceback when its client goes at the moment it is answered (_handle_exceptions in its
    aio/server.pyx.pxi). A kubelet may go; the end of its stream is noticed, and logged where it matters.
    """
    if record.name.startswith("grpc.") and record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError":
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True
