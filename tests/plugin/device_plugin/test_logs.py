"""What becomes of the records of other libraries."""

import logging

import pytest
from google.protobuf.message import DecodeError
from grpc._cython.cygrpc import ExecuteBatchError, InternalError  # type: ignore[import-not-found]

from plugin.device_plugin.logs import start
from tests.program.test_log import logged


def of_grpc(error: Exception, words: str) -> str:
    with logged(start=start) as text:
        try:
            raise error
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception(words)
    return text.getvalue()


@pytest.mark.parametrize(("error", "level"), [(ExecuteBatchError, "INFO"), (InternalError, "ERROR")])
def test_a_client_that_went_while_it_was_answered_is_no_error_of_grpc_s_and_every_other_is(
    error: type[Exception], level: str
) -> None:
    text = of_grpc(error("Failed"), "raised in core by ListAndWatch")
    assert text.splitlines()[0].endswith(f"{level} raised in core by ListAndWatch")
    assert ("Traceback" in text) == (level == "ERROR")


def test_what_is_no_message_is_a_line() -> None:
    text = of_grpc(DecodeError("Wire format was corrupt"), "raised by Allocate")
    assert text.endswith("ERROR refused what is no message: Wire format was corrupt\n")
    assert text.count("\n") == 1
