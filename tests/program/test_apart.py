"""A command line that a child reads: as a process, since it forks."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("command", "answer", "stderr"),
    [
        ("Path('/sys')", "/sys", ""),
        ("None", "0", ""),
        ("3", "3", ""),
        ("Path('/' + 'a' * 200_000)", "/" + "a" * 200_000, ""),
        ("refuse()", "2", "prog: --vm: is away; name a file\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "137", ""),
    ],
    ids=["flags", "done", "exit code", "more than a pipe has room for", "error", "killed"],
)
def test_the_flags_come_back_or_the_code_to_end_with(command: str, answer: str, stderr: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from program.apart import read_apart\n"
        "from program.errors import UserError\n"
        "def refuse(): raise UserError('--vm', 'is away', 'name a file')\n"
        f"answer = read_apart('prog', lambda: [setattr(sys, 'heavy', 1), {command}][1], Path)\n"
        "print(answer(), hasattr(sys, 'heavy'), Path('/proc/thread-self/children').read_text())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{answer} False \n", stderr)  # nothing of the child's, and no child
