"""How a program ends: as a process, since that is what it is about."""

import os
import subprocess
import sys

import pytest

from program.entry import ends_with
from program.output import aligned


def ending(call: str, stdout: int = subprocess.PIPE) -> tuple[str | None, str, int]:
    imports = "from program.entry import ends_with; from program.errors import *; from program.problem import Problem"
    program = f"{imports}; ends_with('prog', lambda: {call})"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.stdout, done.stderr, done.returncode


def raised(error: str) -> str:
    return f"(_ for _ in ()).throw({error})"


@pytest.mark.parametrize(
    ("call", "stderr", "code"),
    [
        ("None", "", 0),
        ("3", "", 3),
        (raised("UserError('--vm', 'is \\n', 'name a file')"), "prog: --vm: is \\n; name a file\n", 2),
        (raised("Refusal('libvirt', 'said no', 'ask again')"), "prog: libvirt: said no; ask again\n", 1),
        (raised("Refusal('a', 'b', 'c', Problem('d', 'e', 'f'))"), "prog: a: b; c\nprog: d: e; f\n", 1),
        ("open('/nowhere')", "prog: /nowhere: No such file or directory\n", 1),
        (raised("KeyboardInterrupt()"), "", 130),
    ],
)
def test_an_error_is_a_line_for_each_problem_and_an_exit_code(call: str, stderr: str, code: int) -> None:
    assert ending(call) == ("", stderr, code)


def test_of_many_problems_the_first_twenty_are_said_and_how_many_more() -> None:
    _, stderr, code = ending(raised("UserError.of([Problem(str(number), 'b', 'c') for number in range(23)], 2)"))
    assert stderr.splitlines() == [*(f"prog: {number}: b; c" for number in range(20)), "prog: and 5 more"]
    assert code == 2


def test_a_full_disk_behind_stdout_is_one_line_and_1() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert ending("print('text')", full) == (None, "prog: cannot write: No space left on device\n", 1)
    finally:
        os.close(full)


def test_the_end_is_the_end() -> None:
    with pytest.raises(SystemExit):
        ends_with("prog", lambda: 0)


def test_cells_are_below_each_other_and_no_line_ends_in_blanks() -> None:
    assert aligned([("A", "B"), ("long", ""), ("x", "y")]) == ["A     B", "long", "x     y"]
