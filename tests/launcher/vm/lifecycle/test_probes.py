"""What the kubelet asks of a pod: the golden pods show the whole; here is what follows from what."""

from pathlib import Path
from typing import Any

import pytest

from launcher.vm import paths
from tests.launcher.pod.made import container_of, written_vm


def probed(path: Path, probe: str, name: str = "readinessProbe") -> Any:
    """The container's probe of a VM whose manifest has that one."""
    return container_of(written_vm(path / "vm.yaml", spec=f"  {name}: {probe}\n"))[name]


def test_a_vm_without_probes_is_ready_while_the_launchers_file_is_there(tmp_path: Path) -> None:
    container = container_of(written_vm(tmp_path / "vm.yaml"))
    assert container["readinessProbe"]["exec"]["command"] == ["test", "-e", paths.READY]
    assert "livenessProbe" not in container


def test_a_vm_with_a_probe_for_life_alone_is_ready_as_others_are(tmp_path: Path) -> None:
    vm = written_vm(tmp_path / "vm.yaml", spec="  livenessProbe: {guestAgentPing: {}}\n")
    assert container_of(vm)["readinessProbe"]["exec"]["command"] == ["test", "-e", paths.READY]


def test_a_start_of_an_hour_is_no_failure_of_the_probe_for_life(tmp_path: Path) -> None:
    """And a VM without one has nothing in its pod that could end it."""
    vm = written_vm(tmp_path / "vm.yaml", spec="  livenessProbe: {guestAgentPing: {}}\n")
    container = container_of(vm)
    startup = container["startupProbe"]
    assert startup["exec"] == container["readinessProbe"]["exec"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    plain = container_of(written_vm(tmp_path / "plain.yaml"))
    assert "startupProbe" not in plain


@pytest.mark.parametrize("name", ["readinessProbe", "livenessProbe"])
def test_what_is_not_said_is_as_kubevirt_and_kubernetes_have_it(tmp_path: Path, name: str) -> None:
    assert probed(tmp_path, "{guestAgentPing: {}, timeoutSeconds: 0}", name) == {
        "exec": {"command": ["gpu-launcher", "ctl", "guest", "ping", "--timeout=1"]},
        "initialDelaySeconds": 10,
        "timeoutSeconds": 6,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def test_a_command_that_looks_like_a_flag_stays_the_guests(tmp_path: Path) -> None:
    probe = probed(tmp_path, "{exec: {command: [--socket, /x, '']}}")
    assert probe["exec"]["command"][3:] == ["exec", "--timeout=1", "--", "--socket", "/x", ""]
