"""The samples of docs/choosing.md: a VM, what `kubectl get` prints, and what `fit` prints of both."""

import re
from pathlib import Path
from textwrap import dedent

from tests.conftest import Command
from tests.processes import ROOT

_BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)


def test_fit_prints_what_the_page_says(tmp_path: Path, gpu_launcher: Command) -> None:
    _, page = (ROOT / "docs" / "choosing.md").read_text().split("### A sample of both\n")
    vm, nodes, of_nodes, slices, of_slices = (dedent(block).strip() + "\n" for block in _BLOCK.findall(page)[:5])
    for name, text in (("vm", vm), ("nodes", nodes), ("slices", slices)):
        (tmp_path / f"{name}.yaml").write_text(text)
    for name, printed in (("nodes", of_nodes), ("slices", of_slices)):
        result = gpu_launcher("fit", tmp_path / "vm.yaml", "--cluster", tmp_path / f"{name}.yaml")
        assert (result.stdout, result.stderr, result.returncode) == (printed, "", 1)
