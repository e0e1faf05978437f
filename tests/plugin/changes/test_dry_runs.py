"""What `gpu-plugin bind | unbind | vgpus --dry-run` print on every recorded and composed machine, under the configs of
the tests: tests/fixtures/dry-runs has it, a file for each machine.

`make test ARGS="tests/plugin/changes/test_dry_runs.py --regenerate"` writes the files anew; read the diff. A difference
is a change of what gpu-plugin does to a node.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from pci.sysfs.functions import read_host
from pci.vendors import NVIDIA
from plugin.commands import bind as binding
from plugin.commands import vgpus as cutting
from program.errors import ProgramError
from tests.compose import SYSFS
from tests.kernel import bind, load
from tests.processes import FIXTURES
from tests.vgpu_kernel import A10, Card, Kernel, a10, b60, dc, l40s

DRY_RUNS = FIXTURES / "dry-runs"

CONFIGS = (
    "{}",
    "{groups: together}",
    "offer: [{vendor: '8086', pci_class: '0300', prefix: intel.com}, {vendor: '10de', withhold: true}]",
    "offer: [{vendor: '10de', prefix: nvidia.com, d3cold_allowed: false}]",
    "vgpus: [{vendor: '10de', types: {L40S-24Q: 2}}, {vendor: '8086', functions: 2}]",
)
#: Of the composed machines whose cards can be cut.
VGPUS = (
    "{}",
    "vgpus: [{device: '10de:26b9', types: {L40S-24Q: 2}}, {device: '10de:2236', types: {A10-8Q: 3}}]",
    "vgpus: [{device: '10de:2bb5', types: {DC-1-12Q: 2, DC-2-48Q: 1}}, {vendor: '8086', functions: 4}]",
    "vgpus: [{device: '10de:26b9', types: {L40S-48Q: 1}}, {device: '10de:1eb8', types: {T4-8Q: 2}}]",
)
CARDS: dict[str, tuple[Card, ...]] = {
    "vgpus-l40s-and-b60": (l40s(), b60()),
    "vgpus-dc-and-a10": (dc(), a10()),
    "vgpus-t4-and-i915": (
        Card(bus=0x81, id="10de:1eb8", possible=0, memory=16, mdevs={"nvidia-23": ("GRID T4-8Q", 8), **A10}),
        b60(driver="i915"),
    ),
}

#: What is run, in a machine's state, under every config.
STATES = {
    "as recorded": ("bind", "unbind", "vgpus"),
    "NVIDIA's functions on nouveau": ("bind",),
    "NVIDIA's functions on vfio-pci": ("unbind",),
}

Capture: TypeAlias = pytest.CaptureFixture[str]


def _give(sys: Path, driver: str) -> None:
    """Let a driver have every NVIDIA function."""
    load(sys, "vfio-pci", driver)
    for address, function in read_host(sys).functions.items():
        if function.vendor_id == NVIDIA and not function.is_bridge:
            bind(sys, str(address), driver)


def _run(command: str, root: Path, config: Path) -> None:
    sysfs, state = root / "sys", root / "state"
    flags = binding.BindFlags(every=True, dry_run=True, config=config, sysfs=sysfs, state=state)
    if command == "bind":
        binding.bind(flags, "")
    elif command == "unbind":
        binding.unbind(flags)
    else:
        cutting.vgpus(cutting.VGPUsFlags(sysfs=sysfs, state=state, dry_run=True, config=config))


def _dry_runs(root: Path, does: Iterable[str], configs: Iterable[str], capfd: Capture) -> Iterator[str]:
    """Yield what each command prints under each config; once, if that is what it printed under the config before."""
    config, before = root / "config.yaml", dict[str, str]()
    for text in configs:
        config.write_text(text)
        for command in does:
            error = ""
            try:
                _run(command, root, config)
            except ProgramError as problem:
                error = f"error: {problem}\n"
            out, err = capfd.readouterr()
            prints = f"{out}{err}{error}".replace(f"{root}/", "/")
            yield f"$ gpu-plugin {command} --dry-run  # {text}\n"
            yield "(the same)\n" if before.get(command) == prints else prints
            before[command] = prints


def _assert_golden(request: pytest.FixtureRequest, name: str, prints: str) -> None:
    golden = DRY_RUNS / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(prints)
    assert prints == golden.read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_dry_runs_on_a_machine_are_as_recorded(
    name: str, tmp_path: Path, capfd: Capture, request: pytest.FixtureRequest
) -> None:
    sys, boot = tmp_path / "sys", tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0b6f3c3e-0000-4000-8000-000000000001\n")
    shutil.copytree(SYSFS / name, sys, symlinks=True)
    prints = ""
    for state, does in STATES.items():
        if (driver := state.partition(" on ")[2]) != "":
            _give(sys, driver)
        prints += f"## {state}\n" + "".join(_dry_runs(tmp_path, does, CONFIGS, capfd))
    _assert_golden(request, name, prints)


@pytest.mark.parametrize("name", CARDS)
def test_dry_runs_on_cards_that_can_be_cut_are_as_recorded(
    name: str, tmp_path: Path, capfd: Capture, request: pytest.FixtureRequest
) -> None:
    kernel = Kernel(tmp_path, *CARDS[name])
    does = ("bind", "vgpus")
    prints = "## uncut\n" + "".join(_dry_runs(tmp_path, does, VGPUS, capfd))
    for card in CARDS[name]:
        if card.possible:
            kernel.on(card)
    prints += "## virtual functions turned on by somebody else\n" + "".join(_dry_runs(tmp_path, does, VGPUS, capfd))
    _assert_golden(request, name, prints)
