"""When a pod starts again, is ready and ends."""

from pathlib import Path

import pytest

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
        ("  runStrategy: Halted\n", "spec: runStrategy: Halted is a VM that is not to run, so it has no pod; write"),
        ("  running: false\n", "spec: running: false is a VM that is not to run, so it has no pod; write"),
        ("", "spec: says neither runStrategy nor running; expected one of them, like runStrategy: Always"),
        ("  runStrategy: Always\n  running: true\n", "spec: says both runStrategy and running; expected one of them"),
    ],
)
def test_a_vm_that_is_not_to_run_has_no_pod(tmp_path: Path, said: str, error: str) -> None:
    with pytest.raises(UserError) as refused:
        text_of(machine(tmp_path / "vm.yaml", said))
    assert str(refused.value).startswith(error)


def test_a_guest_has_all_of_its_grace_before_the_kubelet_kills(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml", spec="  terminationGracePeriodSeconds: 120\n")
    assert pod_of(path)["spec"]["terminationGracePeriodSeconds"] == 165
