"""docs/first-day.md: every command of the page prints what stands below it. --regenerate writes that anew: read the
diff."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import BIN, ROOT

PAGE = ROOT / "docs" / "first-day.md"
TEXT = PAGE.read_text()
#: The number and title of each task that has a command, the command, and what it prints.
TASKS = re.findall(r"^## (\d+)\. (.+)\n\n```sh\n(.+)\n```\n\n```text\n((?:.*\n)*?)```$", TEXT, re.MULTILINE)
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (`.+?`) \| .+ \|$", TEXT, re.MULTILINE)


def test_each_of_the_twenty_tasks_is_shown_here_or_in_getting_started() -> None:
    assert len(ROWS) >= 20
    assert [int(number) for number, _, _ in ROWS] == [*range(1, len(ROWS) + 1)]
    shown = {(number, title) for number, title, _, _ in TASKS}
    assert len(shown) == TEXT.count("\n```sh\n")
    on_a_cluster = [(number, title, here) for number, title, here in ROWS if (number, title) not in shown]
    assert len(on_a_cluster) == 6
    commands = re.sub(r"\s+", " ", (ROOT / "docs/getting-started.md").read_text())
    for _, _, here in on_a_cluster:
        # The page's names are others: my-vm.yaml, with-a-gpu.
        wanted = re.escape(here.strip("`").replace("\\|", "|")).replace("VM\\.yaml", r"\S+.*?").replace("POD", r"\S+")
        assert re.search(wanted, commands), here


@pytest.mark.parametrize(("number", "title", "command", "printed"), TASKS, ids=[f"{n}. {t}" for n, t, _, _ in TASKS])
def test_a_command_of_the_page_prints_what_stands_below_it(
    number: str, title: str, command: str, printed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In a folder that has what a clone has, as far as the commands read it: some write a file beside it."""
    for folder in ("deploy", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.stdout
    if request.config.getoption("--regenerate"):
        old = f"```sh\n{command}\n```\n\n```text\n{printed}```"
        text = PAGE.read_text()
        assert text.count(old) == 1
        PAGE.write_text(text.replace(old, f"```sh\n{command}\n```\n\n```text\n{done.stdout}```"))
        return
    assert done.stdout == printed, f"{number}. {title}"


def test_the_page_names_no_place_of_this_machine() -> None:
    assert str(ROOT) not in TEXT
