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
    logging.basicConfig(handlers=[handler], level=logging.INFO)
