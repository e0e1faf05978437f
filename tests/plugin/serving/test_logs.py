"""What becomes of the records of other libraries."""

import json
import subprocess
import sys

import pytest

LOG = """
import logging
from grpc._cython.cygrpc import ExecuteBatchError, InternalError
from plugin.serving.logs import start_logging
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
