"""The daemon's log, which is grpc's too."""

import logging
from collections.abc import Sequence

from program.log import start_logging


def start(arguments: Sequence[str]) -> logging.Handler:
    """Log as `gpu-plugin serve` with these arguments does: what happened, and in JSON also the device, resource and
    reason as fields. Return the handler."""
    handler = start_logging(arguments)
    handler.addFilter(_as_a_line)
    return handler


def _as_a_line(record: logging.LogRecord) -> bool:
    """Let every record pass, but drop grpc's traceback for a client that left during the answer or sent no valid
    message (_handle_exceptions in grpc's aio/server.pyx.pxi). The end of a kubelet's stream is logged elsewhere.
    """
    if record.name.startswith("grpc.") and record.exc_info:
        error = record.exc_info[1]
        if type(error).__name__ == "ExecuteBatchError":
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        elif type(error).__name__ == "DecodeError":
            record.exc_info = record.exc_text = None
            record.msg, record.args = "refused what is no message: %s", (error,)
    return True
