"""What becomes of the records of other libraries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOG = """
import logging
from grpc._cython.cygrpc import ExecuteBatchError, InternalError
from plugin.device_plugin.logs import start_logging
start_logging()
try:
    raise {error}("Failed")
except Exception:
    logging.getLogger("grpc._cython.cygrpc").exception("raised in core by ListAndWatch")
"""


@pytest.mark.parametrize(("error", "level"), [("ExecuteBatchError", "INFO"), ("InternalError", "ERROR")])
def test_a_client_that_went_while_it_was_answered_is_no_error_of_grpc_s_and_every_other_is(
    error: str, level: str
) -> None:
    run = subprocess.run([sys.executable, "-c", LOG.format(error=error)], capture_output=True, text=True, check=True)
    line = json.loads(run.stderr)
    assert (line["level"], line["message"]) == (level, "raised in core by ListAndWatch")
    assert ("Traceback" in run.stderr) == (level == "ERROR")


CORRUPT = """
import logging
from google.protobuf.message import DecodeError
from plugin.device_plugin.logs import start_logging
start_logging()
try:
    raise DecodeError("Wire format was corrupt")
except Exception:
    logging.getLogger("grpc._cython.cygrpc").exception("raised by Allocate")
"""


def test_what_is_no_message_is_a_line(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CORRUPT], capture_output=True, text=True, check=True)
    line = json.loads(run.stderr)
    assert line["message"] == "refused what is no message: Wire format was corrupt"
    assert "Traceback" not in run.stderr
