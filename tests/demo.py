"""`make demo`: the whole way once, step by step, on a machine that was really recorded.

A node's sysfs, the plugin and the launcher as processes, the kubelet's protocol over real sockets (the stand-in of
tests/kubelet.py), libvirt's test driver. tests/test_journey.py walks the same way and checks each step.
"""

import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.kernel import make_nodes
from tests.kubelet import running_kubelet
from tests.processes import FIXTURES, ROOT, finished, running

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


#: A step begins: its title, the command, and what is waited for. Or it has ended: what came of it.
Say = Callable[[str], None]


def journey(say: Say) -> Journey:
    """Walk the way; `say` hears what each step does, before it does it, and what came of it."""
    inventory = _output(say, "1. The node, as gpu-plugin sees it", "gpu-plugin", "inventory", *PLUGIN)
    env, nodes = _allocation(say)
    render = ("gpu-launcher", "render", VM, "--sysfs", SYSFS)
    xml = _output(say, "4. The domain that gpu-launcher makes of the VM and that variable", *render, env=env)
    hostdevs = _run(env, say, "5. The domain, running on libvirt's test driver, until SIGTERM")
    older = {VARIABLE: "0000:01:00.0,0000:01:00.1,0000:41:00.0,0000:41:00.1"}
    older_hostdevs = _run(older, say, "6. The same VM, by a plugin that lists every function of a card")
    return Journey(inventory, env, nodes, xml, hostdevs, older_hostdevs)


def _allocation(say: Say) -> tuple[dict[str, str], tuple[str, ...]]:
    with (
        tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory,
        running_kubelet(Path(directory)) as kubelet,
    ):
        dev = make_nodes(SYSFS, Path(directory) / "dev")
        pods = ("--pod-resources", Path(directory, "pod-resources", "kubelet.sock"))
        serve = ("gpu-plugin", "serve", *PLUGIN, "--kubelet-dir", directory, "--dev", dev, *pods)
        _begin(say, "2. gpu-plugin registers with the kubelet", serve, "until a stand-in for the kubelet watches it")
        with running(*serve) as plugin:
            kubelet.wait_until(lambda: len(kubelet.healthy(RESOURCE)) == 2)
            plugin.wait_for_line("watched by the kubelet")
            say("\n".join(plugin.log))
            say(f"\n== 3. The kubelet asks it for two {RESOURCE}, as for a container: what gpu-plugin answers\n")
            answer = kubelet.allocate(RESOURCE, 2)
    env, nodes = dict(answer.envs), tuple(node.host_path for node in answer.devices)
    say("\n".join([*(f"{name}={value}" for name, value in env.items()), *nodes]))
    return env, nodes


def _run(env: dict[str, str], say: Say, title: str) -> tuple[str, ...]:
    run = ("gpu-launcher", "run", VM, "--connect", "test:///default", "--sysfs", SYSFS)
    _begin(say, title, run, "until the domain runs, and then until it has shut down", env)
    with running(*run, env=env) as program:
        program.wait_for_line("host 0000:41:00.1")
        program.send(signal.SIGTERM)
        code = program.end()
    say("\n".join([*program.log, f"exit code {code}"]))
    assert code == 0, program.log
    return tuple(line for line in program.log if "-> guest" in line)


def _output(say: Say, title: str, *command: str | Path, env: dict[str, str] | None = None) -> str:
    _begin(say, title, command, env=env)
    name, *arguments = command
    result = finished(str(name), *arguments, env=env)
    assert result.returncode == 0, result.stderr
    say(result.stdout.rstrip())
    return result.stdout


def _begin(
    say: Say, title: str, command: Sequence[str | Path], waits: str = "", env: Mapping[str, str] | None = None
) -> None:
    say(f"\n== {title}\n\n$ {typed(*command, env=env)}\n" + (f"(waits {waits})\n" if waits else ""))


def typed(name: str | Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
    """A command line that can be typed in the checkout."""
    paths = (
        each.relative_to(ROOT) if isinstance(each, Path) and each.is_relative_to(ROOT) else each for each in arguments
    )
    variables = (f"{variable}={value}" for variable, value in (env or {}).items())
    return " ".join([*variables, f".venv/bin/{name}", shlex.join(map(str, paths))])


#: What to type next, and what it shows.
NEXT = (
    (
        "which card each entry of that VM gets, and where the guest has it",
        ("gpu-launcher", "explain", VM, "--sysfs", SYSFS, "--env", f"{VARIABLE}=0000:01:00.0,0000:41:00.0"),
    ),
    ("what would keep that VM from starting on this machine", ("gpu-launcher", "check", VM)),
    ("what keeps this machine's GPUs from guests, and what to do about it", ("gpu-plugin", "doctor")),
)


def main() -> None:
    print("The whole way once, in six steps and about ten seconds, on a recorded machine with two cards.")
    done = journey(partial(print, flush=True))
    assert done.hostdevs == done.older_hostdevs, (done.hostdevs, done.older_hostdevs)
    print("\nBoth plugins gave the guest the same host devices. Type next:\n")
    for words, command in NEXT:
        print(f"    # {words}\n    {typed(*command)}\n")
    print("For a VM with a GPU in a cluster: docs/getting-started.md")


if __name__ == "__main__":
    main()
