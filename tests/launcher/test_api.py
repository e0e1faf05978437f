"""The Python API, by its page."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import launcher
from tests.launcher.test_domain import RTX_2060_CASE
from tests.launcher.vms import RTX_2060_VARIABLE, write_vmi
from tests.processes import FIXTURES, ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
VM = FIXTURES / "vms" / "one-gpu.yaml"
SYSFS = FIXTURES / "sysfs" / "rtx-2060"
ENVIRON = {RTX_2060_VARIABLE: "0000:01:00.0"}


def test_the_pages_example_prints_a_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)
    vm = write_vmi(tmp_path / "vm.yaml", gpus=[("gpu1", "nvidia.com/pgpu")])
    machine = FIXTURES / "sysfs" / "two-rtx-3090"
    exec(example.replace('"vm.yaml"', repr(str(vm))).replace('"/sys"', repr(str(machine))), {})
    printed = capsys.readouterr().out
    assert printed.startswith("<domain ")
    assert 'alias name="ua-gpu-gpu1"' in printed


def test_the_page_has_every_name_that_is_promised_and_the_parameters_of_render() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)(\(.*?\))?` \|", PAGE)
    assert sorted(name for name, _ in rows) == launcher.__all__
    ((_, parameters),) = [row for row in rows if row[0] == "render"]
    found = inspect.signature(launcher.render).parameters.values()
    bare = [parameter.replace(annotation=parameter.empty) for parameter in found]
    assert str(inspect.Signature(bare)) == parameters
    assert all(getattr(launcher, name).__name__ == name for name in launcher.__all__)


def test_a_text_and_an_object_give_the_golden_domain() -> None:
    text = VM.read_text()
    for manifest in (text, yaml.safe_load(text)):
        assert launcher.render(manifest, ENVIRON, sysfs=SYSFS).xml == RTX_2060_CASE.xml()


def test_without_sysfs_a_warning_says_what_the_card_goes_without() -> None:
    (warning,) = launcher.render(VM.read_text(), ENVIRON).warnings
    assert warning.subject == "gpu 'gpu1'"
    assert "without companions" in str(warning)


@pytest.mark.parametrize(
    ("manifest", "sysfs", "subject"),
    [
        ("a: [", SYSFS, "the manifest:2:1"),
        ("kind: Pod", SYSFS, "the manifest:1: kind"),
        ("a: \ud800", SYSFS, "the manifest:1"),
        ({"kind": "VirtualMachine", "apiVersion": {1}}, SYSFS, "the manifest"),
        (VM.read_text(), SYSFS, "gpu 'gpu1'"),
        (VM.read_text(), "/nowhere", "/nowhere"),
    ],
)
def test_what_is_wrong_is_raised(manifest: Any, sysfs: str | Path, subject: str) -> None:
    with pytest.raises(launcher.UserError) as raised:
        launcher.render(manifest, {}, sysfs=sysfs)
    assert raised.value.problems[0].subject == subject


def test_the_package_alone_imports_nothing_of_it() -> None:
    program = "import launcher, sys; print('launcher.api' in sys.modules, 'typing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rendered'"):
        launcher.rendered  # noqa: B018
