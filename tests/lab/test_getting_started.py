"""docs/getting-started.md, block by block as it is copied and pasted, on a node whose cards are on no driver. What is
replaced in it is one table: tests/lab/page.py."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab import page
from tests.lab.lab import Lab
from tests.lab.machine import MODERN
from tests.lab.node import way_in

MACHINE = MODERN

BLOCKS = page.blocks(page.PAGE.read_text())
_HOME = "/run/lab/page"


class Terminal:
    """Where the page's blocks are pasted: in the box, with kubectl and ssh, in a clone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        #: The line of the first block that has failed: those after it stand on it.
        self.failed_at: int | None = None

    def paste(self, block: page.Block) -> subprocess.CompletedProcess[str]:
        script = page.session(page.replaced(block.script, page.IN_BLOCKS), f"{_HOME}/clone", f"{_HOME}/bin")
        return self._lab.box.run("bash", "-c", script, seconds=900)


@pytest.fixture(scope="module")
def terminal(lab: Lab) -> Iterator[Terminal]:
    home = lab.box.path(_HOME)
    (home / "bin").mkdir(parents=True)
    (home / "clone").mkdir()
    page.write_clone(home / "clone")
    # A kubectl of its own, since the page changes its namespace.
    kubectl, _, config, *_ = lab.cluster.argv()
    (home / "kubeconfig").write_text(lab.box.path(config).read_text())
    programs = {
        "kubectl": page.kubectl(f"{kubectl} --kubeconfig {_HOME}/kubeconfig --cache-dir {_HOME}/cache"),
        "helm": f'#!/bin/sh\nexec {kubectl.replace("kubectl", "helm")} --kubeconfig {_HOME}/kubeconfig "$@"\n',
        "ssh": page.ssh(" ".join(way_in()), f"{way_in()[0]} nc 127.0.0.1 2222"),
    }
    for name, text in programs.items():
        (home / "bin" / name).write_text(text)
        (home / "bin" / name).chmod(0o755)
    (lab.box.path("/run/lab/.ssh")).mkdir()
    (lab.box.path("/run/lab/.ssh/id_ed25519.pub")).write_text("ssh-ed25519 AAAA lab\n")
    yield Terminal(lab)
    for what in (("logs", "-n", "vms", "with-a-gpu"), ("describe", "pods", "-A")):
        said = lab.box.run(f"{_HOME}/bin/kubectl", *what)
        (lab.box.logs / f"getting-started-{what[0]}.log").write_text(said.stdout + said.stderr)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}: {block.heading}")
def test_a_block_of_the_page_works_as_pasted(terminal: Terminal, block: page.Block) -> None:
    assert terminal.failed_at is None, f"the block in line {terminal.failed_at} has failed, and this one stands on it"
    terminal.failed_at = block.line
    done = terminal.paste(block)
    allowed = next((codes for part, codes in page.CODES.items() if part in block.script), frozenset({0}))
    assert done.returncode in allowed, f"{block.script}\n{done.stdout}{done.stderr}"
    for part, expected in page.SEEN.items():
        if part in block.script:
            assert re.search(expected, done.stdout), f"{block.script}\n{done.stdout}{done.stderr}"
    terminal.failed_at = None


def test_nothing_is_left_of_what_the_page_has_applied(lab: Lab, terminal: Terminal) -> None:
    assert terminal.failed_at is None

    def left() -> bool:
        names = lab.cluster.kubectl("get", "daemonsets,pods,services,configmaps", "-A", "-o", "name")
        return "gpu-plugin" in names or "with-a-gpu" in names

    lab.until("the plugin's pod has gone", lambda: not left(), 60)
    assert "gpu-launcher.dev/bind" not in lab.cluster.get("node", lab.node.name)["metadata"]["labels"]


def test_a_block_with_a_mistake_fails(lab: Lab, terminal: Terminal) -> None:
    """In one command, also before a pipe: as many as would do harm if they went unnoticed."""
    (started,) = (block for block in BLOCKS if "kubectl logs" in block.script)
    for right, wrong in (("my-vm.yaml", "no-vm.yaml"), ("kubectl apply -f -", "kubectl applies -f -")):
        assert right in started.script
        done = terminal.paste(page.Block(0, "", started.script.replace(right, wrong)))
        assert done.returncode not in (0, None), done.stdout
