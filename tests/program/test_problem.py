"""What is wrong with a thing, as one line, and how bad it is."""

import pickle
import subprocess
import sys

import pytest

from program.errors import ProgramError, Refusal, UserError
from program.problem import Problem, Severity, one_line


def test_a_problem_is_one_line_of_its_subject_what_is_wrong_and_the_fix() -> None:
    assert str(Problem("vm.yaml", "is empty", "write a VM")) == "vm.yaml: is empty; write a VM"
    assert str(Problem("a\nb", "has \x1b", "fix\u2028it")) == r"a\nb: has \x1b; fix\u2028it"


@pytest.mark.parametrize("error", [UserError("--config", "is wrong", "leave it out"), Refusal(7, "no", "yes")])
def test_an_error_carries_its_problem_also_to_another_process(error: ProgramError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.problem, str(again)) == (type(error), error.problem, str(error))


def test_severities_are_in_order_and_have_a_commands_exit_code() -> None:
    assert [severity.word for severity in sorted(Severity)] == ["ok", "note", "warning", "error"]
    assert [severity.exit_code for severity in sorted(Severity)] == [0, 0, 3, 4]


def test_letters_of_other_scripts_stay_as_they_are() -> None:
    assert one_line("Grafikkarte für 図形") == "Grafikkarte für 図形"


def test_importing_errors_costs_nothing() -> None:
    """The launcher's supervisor stays beside QEMU, and has them."""
    program = (
        "import sys, enum, typing; before = set(sys.modules); import program.entry; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"program", "program.entry", "program.errors", "program.problem"}
