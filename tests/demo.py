"""`make demo`: the whole way once, step by step, on a machine that was really recorded.

A node's sysfs, the plugin and the launcher as processes, the kubelet's protocol over real sockets (the stand-in of
tests/kubelet.py), libvirt's test driver. tests/test_journey.py walks the same way and checks each step.
"""

import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kernel import make_nodes
from tests.kubelet import running_kubelet
from tests.processes import FIXTURES, finished, running

SYSFS = FIXTURES / "sysfs" / "two-cards-nested-vfio"
CONFIG = FIXTURES / "demo" / "offer-bochs.yaml"
VM = FIXTURES / "demo" / "two-cards.yaml"
RESOURCE = "example.com/bochs"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_BOCHS"

PLUGIN = ("--sysfs", SYSFS, "--config", CONFIG, "--pci-ids", FIXTURES / "pci.ids")


@dataclass(frozen=True)
class Journey:
    """What each step gave: `hostdevs` are the lines of `gpu-launcher run`, in libvirt's words."""

    inventory: str
    env: dict[str, str]
    nodes: tuple[str, ...]
    xml: str
    hostdevs: tuple[str, ...]
    older_hostdevs: tuple[str, ...]


def journey(say: Callable[[str, str], None]) -> Journey:
    """Walk the way; `say` hears each step's title and what came of it."""
    inventory = _output("gpu-plugin", "inventory", *PLUGIN)
    say("The node, as gpu-plugin sees it", inventory)

    env, nodes = _allocation(say)
    say("Two cards asked of the kubelet: what gpu-plugin answered", "\n".join(
        [*(f"{name}={value}" for name, value in env.items()), *nodes]
    ))  # fmt: skip

    xml = _output("gpu-launcher", "render", VM, "--sysfs", SYSFS, env=env)
    say("The domain that gpu-launcher makes of the VM and that variable", xml)

    hostdevs = _run(env, say, "The domain, running on libvirt's test driver, until SIGTERM")

    older_value = "0000:01:00.0,0000:01:00.1,0000:41:00.0,0000:41:00.1"
    older = {VARIABLE: older_value}
    older_hostdevs = _run(older, say, f"The same VM from the older dialect, {VARIABLE}={older_value}")
    return Journey(inventory, env, nodes, xml, hostdevs, older_hostdevs)


def _allocation(say: Callable[[str, str], None]) -> tuple[dict[str, str], tuple[str, ...]]:
    with (
        tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory,
        running_kubelet(Path(directory)) as kubelet,
        running(
            *("gpu-plugin", "serve", *PLUGIN, "--kubelet-dir", directory),
            *("--dev", make_nodes(SYSFS, Path(directory) / "dev")),
        ) as plugin,
    ):
        kubelet.wait_until(lambda: len(kubelet.healthy(RESOURCE)) == 2)
        plugin.wait_for_line("watched by the kubelet")
        say("gpu-plugin registers with the kubelet", "\n".join(plugin.log))
        answer = kubelet.allocate(RESOURCE, 2)
    return dict(answer.envs), tuple(node.host_path for node in answer.devices)


def _run(env: dict[str, str], say: Callable[[str, str], None], title: str) -> tuple[str, ...]:
    with running("gpu-launcher", "run", "--vm", VM, "--connect", "test:///default", "--sysfs", SYSFS, env=env) as run:
        run.wait_for_line("host 0000:41:00.1")
        run.send(signal.SIGTERM)
        code = run.end()
    say(title, "\n".join([*run.log, f"exit code {code}"]))
    assert code == 0, run.log
    return tuple(line for line in run.log if "-> guest" in line)


def _output(name: str, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
    result = finished(name, *arguments, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout


def main() -> None:
    steps = iter(range(1, 100))

    def say(title: str, text: str) -> None:
        print(f"\n== {next(steps)}. {title}\n\n{text.rstrip()}", flush=True)

    done = journey(say)
    assert done.hostdevs == done.older_hostdevs, (done.hostdevs, done.older_hostdevs)
    print("\nBoth dialects gave the guest the same host devices.")


if __name__ == "__main__":
    main()
