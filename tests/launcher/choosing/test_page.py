"""The samples of docs/choosing.md: what `fit` prints of a VM, and of what `kubectl get` prints."""

import re
from pathlib import Path
from textwrap import dedent

import yaml

from tests.clusters import card_and_cpus
from tests.conftest import Command
from tests.processes import FIXTURES, ROOT

_BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
SAMPLE = FIXTURES / "choosing" / "sample"


def test_fit_prints_what_the_page_says(gpu_launcher: Command) -> None:
    _, page = (ROOT / "docs" / "choosing.md").read_text().split("### A sample of both\n")
    for name, block in zip(("nodes", "slices"), _BLOCK.findall(page)[:2], strict=True):
        result = gpu_launcher("fit", SAMPLE / "vm.yaml", "--cluster", SAMPLE / f"{name}.yaml")
        assert (result.stdout, result.stderr, result.returncode) == (dedent(block).strip() + "\n", "", 1)


def test_a_vm_with_a_card_and_cpus_in_one_claim_asks_for_all_of_it_and_for_as_many_cpus(
    gpu_launcher: Command, tmp_path: Path
) -> None:
    template, vm = card_and_cpus()
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "whole"}, **vm}
    vm["spec"]["domain"]["memory"] = {"guest": "1Gi"}
    (tmp_path / "vm.yaml").write_text(yaml.safe_dump(vm))
    result = gpu_launcher("pod", tmp_path / "vm.yaml", "--image=localhost/gpu-launcher")
    assert result.returncode == 0, result.stderr
    (pod,) = (each for each in yaml.safe_load_all(result.stdout) if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "mine"}]
    _, cpus = template["spec"]["spec"]["devices"]["requests"]
    assert container["resources"]["requests"]["cpu"] == str(cpus["exactly"]["count"])
