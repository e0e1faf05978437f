"""Machines that people have, as listings, and the verdict on each: what doctor says of it, and what bind does there."""

from pathlib import Path

import pytest

from pci.address import PCIAddress
from plugin.binding.plan import named_cards, plan_bind
from plugin.binding.rebind import Roots, look
from plugin.cards.config import Config
from plugin.cards.names import PCIIDs
from plugin.doctor import examine
from plugin.node.snapshot import Snapshot
from program.errors import Refusal
from program.finding import worst
from program.problem import Severity
from tests.listings import MACHINES, NoListing, Tree, compose_listing
from tests.snapshots import look_at

NAMES = sorted(path.stem for path in MACHINES.glob("*.lst"))


def listing(name: str) -> str:
    return (MACHINES / f"{name}.lst").read_text()


def seen(tree: Tree, pci_ids: PCIIDs) -> Snapshot:
    return look_at(tree.sys, pci_ids, proc=tree.proc, dev=tree.dev)


def verdict(snapshot: Snapshot, tree: Tree) -> str:
    """What doctor says but what is fine, with its exit code, and what bind does with each device."""
    findings = examine(snapshot)
    lines = [f"doctor: exit code {worst(findings).exit_code}"]
    for severity in sorted(set(Severity) - {Severity.OK}, reverse=True):
        for finding in (one for one in findings if one.severity is severity):
            lines.append(f"{severity.word} {finding.problem.subject}: {finding.problem.wrong}")
            lines += [f"  -> {step}" for step in (finding.problem.fix, *finding.steps) if step]
    lines += [f"bind {one.id}: {bound(snapshot, tree, one.id)}" for one in snapshot.inventory.devices if not one.mdev]
    return "\n".join(lines) + "\n"


def bound(snapshot: Snapshot, tree: Tree, device: str) -> str:
    host = snapshot.host
    cards = named_cards(host, [PCIAddress.parse(device)])
    try:
        plan = plan_bind(look(Roots.beside(tree.sys, tree.sys.parent / "state"), host, cards), cards, config=Config())
    except Refusal as refusal:
        return "; ".join(part for part in refusal.problem if part)
    return ", ".join(f"{move.address} to vfio" for move in plan.moves) or "nothing to do"


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_has_its_verdict(name: str, tmp_path: Path, pci_ids: PCIIDs, request: pytest.FixtureRequest) -> None:
    tree = compose_listing(tmp_path, listing(name))
    said = verdict(seen(tree, pci_ids), tree)
    golden = MACHINES / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        golden.write_text(said)
    assert said == golden.read_text()


def test_the_only_card_is_offered_once_vfio_has_it_from_boot_on(tmp_path: Path, pci_ids: PCIIDs) -> None:
    tree = compose_listing(tmp_path / "before", listing("one-card-that-is-the-screen"))
    assert "vfio-pci.ids=10de:1f08,10de:10f9,10de:1ada,10de:1adb," in bound(seen(tree, pci_ids), tree, "0000:0a:00.0")
    tree = compose_listing(tmp_path / "after", listing("one-card-that-is-the-screen-on-vfio"))
    snapshot = seen(tree, pci_ids)
    assert [device.id for device in snapshot.inventory.offered if snapshot.reason(device) is None] == ["0000:0a:00.0"]
    assert worst(examine(snapshot)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("0000:01:00.0 10de:1b81 030000 - g1", "line 1: .* is no function below a root"),
        ("root pci0000:00\n\n0000:01:00.0 10de:1b81 0300 - g1", "line 3: .* is no function below a root"),
        ("root pci0000:00\n0000:01:00.0 10de:1b81 030000 - g1 colour=red", "line 2: colour is none of bars, "),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(NoListing, match=wrong):
        compose_listing(tmp_path, text)
