import logging

import pytest

from program.trouble import Trouble

_log = logging.getLogger("test")


def test_a_trouble_that_lasts_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble(_log, logging.WARNING, "not done", "done again")
    for each in (None, "a", "a", ValueError("b"), "b", None, None, "b"):
        trouble.tell(each)
    assert [f"{record.levelname} {record.getMessage()}" for record in caplog.records] == [
        "WARNING not done: a",
        "WARNING not done: b",
        "INFO done again",
        "WARNING not done: b",
    ]
