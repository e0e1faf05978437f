"""The samples of docs/choosing.md: what `fit` prints of a VM, and of what `kubectl get` prints."""

import re
from textwrap import dedent

from tests.conftest import Command
from tests.processes import FIXTURES, ROOT

_BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
SAMPLE = FIXTURES / "choosing" / "sample"


def test_fit_prints_what_the_page_says(gpu_launcher: Command) -> None:
    _, page = (ROOT / "docs" / "choosing.md").read_text().split("### A sample of both\n")
    for name, block in zip(("nodes", "slices"), _BLOCK.findall(page)[:2], strict=True):
        result = gpu_launcher("fit", SAMPLE / "vm.yaml", "--cluster", SAMPLE / f"{name}.yaml")
        assert (result.stdout, result.stderr, result.returncode) == (dedent(block).strip() + "\n", "", 1)
