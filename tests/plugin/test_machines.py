"""Machines that people have, as listings, and the verdict on each: what doctor says of it, and what bind does there."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.functions import is_gpu
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.names import PCIIDs
from plugin.changes.engine import NodeIO, Roots
from plugin.changes.users import Users
from plugin.doctor import examine
from plugin.doctor.finding import Check, NodeFinding
from plugin.kinds.card import move, named_cards, plan_bind
from plugin.kinds.survey import look
from plugin.node.snapshot import Snapshot
from program.errors import Refusal
from program.finding import worst
from program.problem import Severity
from tests.compose import SYSFS
from tests.kernel import Sysfs, load, make_nodes
from tests.listings import MACHINES, NoListing, Tree, compose_listing
from tests.snapshots import look_at

NAMES = sorted(path.stem for path in MACHINES.glob("*.lst"))


def listing(name: str) -> str:
    return (MACHINES / f"{name}.lst").read_text()


def seen(tree: Tree, pci_ids: PCIIDs, config: Config | None = None) -> Snapshot:
    return look_at(tree.sys, pci_ids, config, proc=tree.proc, dev=tree.dev)


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
        plan = plan_bind(
            look(Roots.beside(tree.sys, tree.sys.parent / "state"), host, cards, Users()), cards, config=Config()
        )
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


#: The listings on which nothing is wrong: what guests can have they get, and the rest is the node's.
HEALTHY = {
    *("am4-x570-first-slot", "arc-b580-whole", "rx-6600-with-groups-of-their-own", "split-groups-apu"),
    *("one-card-that-is-the-screen-on-vfio", "vmd-beside-a-card", "virtual-machine-with-its-console"),
    *("healthy-vf-node-xe", "l40s-with-vgpus", "mi300x-on-gim", "intel-own-gpu-in-parts"),
    *("intel-own-gpu-past-the-iommu", "office-pc-with-its-processors-gpu"),
    *("kunpeng-server-without-a-gpu", "server-without-a-gpu", "server-without-a-gpu-or-an-iommu"),
}


@pytest.mark.parametrize("name", NAMES)
def test_doctor_ends_with_0_on_a_healthy_machine_and_with_4_only_where_it_says_what_to_do(
    name: str, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    findings = examine(seen(compose_listing(tmp_path, listing(name)), pci_ids))
    code = worst(findings).exit_code
    assert (code == 0) == (name in HEALTHY)
    errors = [one for one in findings if one.severity is Severity.ERROR]
    assert all(one.problem.fix for one in errors)
    # That nothing can be handed out is no advice by itself.
    advised = [one for one in findings if one.device is not None and (one.problem.fix or one.steps)]
    assert code != 4 or any(one.check in (Check.VIABILITY, Check.BOOT_VGA) for one in advised)


def test_the_only_card_is_offered_once_vfio_has_it_from_boot_on(tmp_path: Path, pci_ids: PCIIDs) -> None:
    tree = compose_listing(tmp_path / "before", listing("one-card-that-is-the-screen"))
    assert "vfio-pci.ids=10de:1f08,10de:10f9,10de:1ada,10de:1adb," in bound(seen(tree, pci_ids), tree, "0000:0a:00.0")
    tree = compose_listing(tmp_path / "after", listing("one-card-that-is-the-screen-on-vfio"))
    snapshot = seen(tree, pci_ids)
    assert [device.id for device in snapshot.inventory.offered if snapshot.reason(device) is None] == ["0000:0a:00.0"]
    assert worst(examine(snapshot)).exit_code == 0


#: Advice that only firmware, the kernel or a hand at the machine can take, by how it begins.
BY_HAND = (
    *(
        "turn on ",
        "boot with ",
        "take ",
        "its log says why",
        "put the card into another slot",
        "a slot whose root port",
    ),
    *("they are the node's own: put the card", "it is the node's own: put the card", "one that has an SMMU there"),
    *("a machine without an SMMU", "the firmware's table IORT"),
)
#: What a step beside it says as a command.
IN_WORDS = ("bind it to vfio-pci", "bind the whole card to vfio-pci", "free it of its driver")
TOGETHER = "if they may go to one guest only: groups: together in the config"
WITHHOLD = "if the node is to keep it: a rule with withhold: true in the config"


def errors(snapshot: Snapshot, device: str) -> list[NodeFinding]:
    found = (finding for finding in examine(snapshot) if finding.device == device)
    return [finding for finding in found if finding.severity is Severity.ERROR]


def take(step: str, device: str, tree: Tree, config: Config) -> Config:
    """Do what a step of the doctor says, as a person would; return the config that there is then."""
    if step.startswith("gpu-plugin bind "):
        host = read_host(tree.sys)
        cards = named_cards(host, map(PCIAddress.parse, step.split()[2:]))
        roots = Roots.beside(tree.sys, tree.sys.parent / "state")
        roots.state.mkdir(exist_ok=True)
        plan = plan_bind(look(roots, host, cards, Users()), cards, config=config)
        assert plan.moves, f"{step} does nothing"
        move(NodeIO(sys=tree.sys, journal=roots.journal, write=Sysfs(tree.sys), wait=lambda _: None), plan)
        make_nodes(tree.sys, tree.dev)
    elif step.startswith("echo "):
        driver = tree.sys / Path(step.split(" > ")[1]).relative_to("/sys").parent
        driver.unlink()
    elif step.startswith(TOGETHER):
        group = read_host(tree.sys).functions[PCIAddress.parse(device)].iommu_group
        its = (one for one in read_host(tree.sys).functions.values() if one.iommu_group == group and is_gpu(one))
        rules = tuple(Rule(address=str(one.address), resource="example.com/both") for one in its)
        return replace(config, groups=Groups.TOGETHER, offer=rules if step.endswith("one resource") else ())
    else:
        assert step == WITHHOLD, f"nobody knows how to take {step!r}"
        return replace(config, offer=(*config.offer, Rule(address=device, withhold=True)))
    return config


def take_all(tree: Tree, pci_ids: PCIIDs, device: str, *, withhold: bool) -> tuple[int, list[NodeFinding]]:
    """Take the step that doctor gives for a device, and the next, until none is left that is not by hand: those that
    keep the device for the node, or the others. Return how many were taken, and the errors that are left."""
    config, wrongs = Config(), list[str]()
    while found := errors(seen(tree, pci_ids, config), device):
        assert found[0].problem.wrong not in wrongs, "a step changed nothing"
        steps = (step for finding in found for step in (finding.problem.fix, *finding.steps))
        doable = (step for step in steps if not step.startswith(BY_HAND + IN_WORDS) and (step == WITHHOLD) is withhold)
        if (step := next(doable, None)) is None:
            break
        wrongs.append(found[0].problem.wrong)
        config = take(step, device, tree, config)
    return len(wrongs), found


def another(name: str, root: Path) -> Tree:
    """A copy of a machine of ours, as a listing or as a tree of sysfs."""
    if name in NAMES:
        return compose_listing(root, listing(name))
    sys, proc = Path(shutil.copytree(SYSFS / name, root / "sys", symlinks=True)), root / "proc"
    proc.mkdir()
    load(sys, "vfio-pci", *(one.driver for one in read_host(sys).functions.values() if one.driver is not None))
    return Tree(sys, proc, make_nodes(sys, root / "dev"))


@pytest.mark.parametrize("name", [*NAMES, *sorted(path.name for path in SYSFS.iterdir())])
@pytest.mark.parametrize("withhold", [False, True])
def test_what_doctor_advises_of_a_device_leaves_nothing_wrong_with_it(
    name: str, withhold: bool, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    """Each step changes what is wrong, and the last one mends it; otherwise it is not advised, and all that is said is
    to be done by hand."""
    for device in seen(another(name, tmp_path / "first"), pci_ids).inventory.devices:
        tree = another(name, tmp_path / device.id)
        taken, left = take_all(tree, pci_ids, device.id, withhold=withhold)
        assert not taken or not left
        if not taken and not withhold:
            assert all(finding.problem.fix.startswith(BY_HAND) for finding in left)


def left_behind(snapshot: Snapshot, device: str) -> list[NodeFinding]:
    return [one for one in examine(snapshot) if one.check is Check.WHOLE_CARD and one.device == device]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_behind_of_a_card_and_can_be_bound_comes_along_afterwards(
    name: str, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    for device in seen(another(name, tmp_path / "first"), pci_ids).inventory.devices:
        tree = another(name, tmp_path / device.id)
        left = left_behind(seen(tree, pci_ids), device.id)
        for step in {step for finding in left for step in finding.steps}:
            take(step, device.id, tree, Config())
        after = left_behind(seen(tree, pci_ids), device.id)
        assert after == [finding for finding in left if not finding.steps]


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
