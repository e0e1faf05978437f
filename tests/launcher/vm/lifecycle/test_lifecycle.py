"""When a pod starts again, is ready and ends."""

from pathlib import Path

import pytest

from launcher.manifest.parser import read_vm
from launcher.vm.lifecycle.pod import restart_policy
from program.errors import UserError
from tests.launcher.cases import VMS
from tests.launcher.pod.made import pod_of, text_of, written_vm


def machine(path: Path, said: str) -> Path:
    text = (VMS / "seed-001.yaml").read_text()
    assert text.count("  runStrategy: RerunOnFailure\n") == 1
    path.write_text(text.replace("  runStrategy: RerunOnFailure\n", said))
    return path


@pytest.mark.parametrize(
    ("said", "policy"),
    [
        ("  runStrategy: Always\n", "Always"),
        ("  running: true\n", "Always"),
        ("  runStrategy: RerunOnFailure\n", "OnFailure"),
        ("  runStrategy: Once\n", "Never"),
        ("  runStrategy: Manual\n", "Never"),
    ],
)
def test_a_vm_starts_again_as_its_run_strategy_says(tmp_path: Path, said: str, policy: str) -> None:
    assert pod_of(machine(tmp_path / "vm.yaml", said))["spec"]["restartPolicy"] == policy


def test_an_instance_of_nobodys_runs_once(tmp_path: Path) -> None:
    assert pod_of(written_vm(tmp_path / "vm.yaml"))["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            "  runStrategy: Halted\n",
            "spec: says runStrategy: Halted: a VM that is not to run has no pod; start it with",
        ),
        ("  running: false\n", "spec: says running: false: a VM that is not to run has no pod; start it with --start"),
        ("", "spec: says neither runStrategy nor running: a VM that is not to run has no pod; start it with --start"),
    ],
)
def test_a_vm_that_is_not_to_run_has_no_pod_unless_it_is_started(tmp_path: Path, said: str, error: str) -> None:
    path = machine(tmp_path / "vm.yaml", said)
    with pytest.raises(UserError) as refused:
        text_of(path)
    assert str(refused.value).startswith(error)
    assert restart_policy(read_vm(path).manifest, start=True) == "Always"


def test_a_vm_that_is_to_run_is_started_as_it_says(tmp_path: Path) -> None:
    path = machine(tmp_path / "vm.yaml", "  runStrategy: Once\n")
    assert restart_policy(read_vm(path).manifest, start=True) == "Never"


def test_a_guest_has_all_of_its_grace_before_the_kubelet_kills(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml", spec="  terminationGracePeriodSeconds: 120\n")
    assert pod_of(path)["spec"]["terminationGracePeriodSeconds"] == 165
