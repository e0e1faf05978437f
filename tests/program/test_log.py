"""The log of a program, in both formats, with the handler on a text instead of standard error."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest

from gpuvm.commands.why import message
from program.log import LogFlags, log_or_print, start_logging
from program.problem import Severity

_log = logging.getLogger("launcher.test")


@contextmanager
def logged(*arguments: str, start: Callable[[Sequence[str]], Any] = start_logging) -> Iterator[StringIO]:
    """A log that is started with these arguments, and what is in it so far. Pytest's own handlers stay."""
    root, text = logging.getLogger(), StringIO()
    loggers = [root, *map(logging.getLogger, ("launcher", "plugin", "program"))]
    levels = [logger.level for logger in loggers]
    handler = start(arguments)
    handler.setStream(text)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_a_line_for_people_has_its_time_in_utc_and_its_level() -> None:
    with logged() as text:
        _log.info("%s is running", "lab_vm", extra={"domain": "lab_vm"})
        _log.debug("a secret")
        log_or_print("gpu-launcher", "vm.yaml: is no manifest; write one")
        log_or_print("gpu-launcher", "a volume: is slow; take another", Severity.WARNING)
    first, second, third = text.getvalue().splitlines()
    assert re.fullmatch(f"{TIME} INFO lab_vm is running", first)
    assert re.fullmatch(f"{TIME} ERROR vm.yaml: is no manifest; write one", second)
    assert re.fullmatch(f"{TIME} WARNING a volume: is slow; take another", third)


def test_a_line_of_json_is_one_object_with_the_fields_that_there_are() -> None:
    with logged("run", "--log-format", "json") as text:
        _log.info("%s is running", "lab_vm", extra={"domain": "lab_vm"})
        log_or_print("gpu-launcher", 'two\nlines, "quoted", and \u00e4')
        try:
            raise ValueError("a\nb")
        except ValueError:
            _log.exception("a defect")
    first, second, third = map(json.loads, text.getvalue().splitlines())
    assert re.fullmatch(TIME, first.pop("time"))
    assert list(first.items()) == [("level", "INFO"), ("message", "lab_vm is running"), ("domain", "lab_vm")]
    assert (second["level"], second["message"]) == ("ERROR", 'two\nlines, "quoted", and \u00e4')
    assert third["exc_info"].endswith("ValueError: a\nb")


@pytest.mark.parametrize(
    ("level", "there"),
    [
        ("debug", ["debug", "info", "warning", "error", "info of another library"]),
        ("info", ["info", "warning", "error", "info of another library"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
        ("loud", ["info", "warning", "error", "info of another library"]),  # the command line refuses that
    ],
)
def test_nothing_below_the_level_is_logged_and_of_other_libraries_nothing_below_info(
    level: str, there: list[str]
) -> None:
    with logged(f"--log-level={level}") as text:
        for each in ("debug", "info", "warning", "error"):
            getattr(_log, each)(each)
        logging.getLogger("hpack").debug("a header")
        logging.getLogger("hpack").info("info of another library")
    assert [line.split(" ", 2)[2] for line in text.getvalue().splitlines()] == there


def test_a_program_without_a_log_prints_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log_or_print("prog", "a: b; c")
    log_or_print("prog", "d: e", Severity.NOTE)
    assert capsys.readouterr().err == "prog: a: b; c\nprog: note: d: e\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_kubectl_gpuvm_reads_the_last_line_of_either_format(form: str) -> None:
    with logged(f"--log-format={form}") as text:
        log_or_print("gpu-launcher", "memory.guest: 3Gi is no multiple of 2Gi; write 4Gi")
    assert message(text.getvalue().rstrip()) == "memory.guest: 3Gi is no multiple of 2Gi; write 4Gi"


@pytest.mark.parametrize("line", ["", "{", "[]", '{"msg": 1}', "[" * 100_000, "Killed", "2026-11-24 a date"])
def test_any_other_line_is_what_it_says(line: str) -> None:
    assert message(line) == line


def test_flags_for_another_program_are_those_that_differ() -> None:
    assert LogFlags().arguments == ()
    assert LogFlags(log_format="json", log_level="debug").arguments == ("--log-format=json", "--log-level=debug")
