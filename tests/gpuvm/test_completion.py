"""Completion: of a shell that calls kubectl-gpuvm, and of kubectl, which calls kubectl_complete-gpuvm."""

import subprocess

import pytest

from tests.gpuvm.cluster import pod
from tests.gpuvm.standin import StandIn
from tests.processes import BIN, ROOT


def completed(kubectl: StandIn, *words: str) -> list[str]:
    done = subprocess.run(
        [BIN / "kubectl_complete-gpuvm", *words], cwd=ROOT, env=kubectl.env, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sto"], ["stop"]),
        (["un"], ["uncordon", "unpause"]),
        (["guest", "f"], ["filesystems"]),
        (["vnc", "--vnc-"], ["--vnc-type", "--vnc-path"]),
        (["pause", "w"], ["web-0", "web-1"]),
        (["ssh", "-n", "vms", "d"], []),
    ],
)
def test_what_may_come_next(kubectl: StandIn, words: list[str], expected: list[str]) -> None:
    kubectl.answers("get pods", [pod("web-1"), pod("db"), pod("web-0")])
    assert completed(kubectl, *words) == [*expected, ":4"]


def test_a_cluster_that_does_not_answer_completes_nothing(kubectl: StandIn) -> None:
    kubectl.answers("get pods", err="the server is away", code=1)
    assert completed(kubectl, "pause", "w") == [":4"]


def test_a_shell_has_a_script() -> None:
    """typer's, by the shell's name."""
    environ = {"_KUBECTL_GPUVM_COMPLETE": "source_zsh", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([BIN / "kubectl-gpuvm"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert "#compdef kubectl-gpuvm" in done.stdout
