"""A stand-in for kubectl on PATH: it writes down how it is called, and says what a test has it say."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -IS
import json, re, sys, time
from pathlib import Path
here = Path({directory!r})
words = " ".join(sys.argv[1:])
given = "" if "logs" in sys.argv or sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "backslashreplace")
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
with (here / "given.jsonl").open("a") as calls:
    calls.write(json.dumps(given) + "\\n")
for pattern, out, err, code in json.loads((here / "answers.json").read_text()):
    if re.search(pattern, words):
        sys.stdout.buffer.write(bytes.fromhex(out))
        sys.stderr.write(err)
        sys.exit(code)
sys.exit(f"the stand-in has no answer to {{words}}")
"""


@dataclass(frozen=True)
class StandIn:
    """`bin` goes first on PATH."""

    directory: Path

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/bin:/bin"}

    def answers(self, pattern: str, out: str | bytes | list[Any] | Any = "", err: str = "", code: int = 0) -> None:
        """Have it answer a call that fits the pattern: with objects as `kubectl get -o json` prints them, a text or
        bytes. What was given first counts."""
        if isinstance(out, list | dict):
            out = json.dumps({"apiVersion": "v1", "kind": "List", "items": out} if isinstance(out, list) else out)
        data = out if isinstance(out, bytes) else out.encode()
        file = self.directory / "answers.json"
        file.write_text(json.dumps([*json.loads(file.read_text()), (pattern, data.hex(), err, code)]))

    @property
    def calls(self) -> list[list[str]]:
        """How it was called, each with the program's name first."""
        return self._lines("calls.jsonl")

    @property
    def given(self) -> list[str]:
        """What was on standard input of each call."""
        return self._lines("given.jsonl")

    def add(self, name: str) -> None:
        """Stand in for another program too."""
        program = self.bin / name
        program.write_text(_PROGRAM.format(python=sys.executable, directory=str(self.directory)))
        program.chmod(0o755)

    def _lines(self, name: str) -> list[Any]:
        file = self.directory / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def stand_in(directory: Path) -> StandIn:
    made = StandIn(directory)
    made.bin.mkdir(parents=True)
    (directory / "answers.json").write_text("[]")
    made.add("kubectl")
    return made
