"""No state file keeps a node from offering its cards: what it is about is unhealthy by name, and all else is served."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from plugin.cards.claimable import claimable_cards
from plugin.cards.config import Bind, Config, Fabric, Rule, Serve
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.commands.vgpus import Action, VGPUsFlags, vgpus
from plugin.dra.slices import claimable
from plugin.fabric.modules import keep, read_module_ids
from plugin.node.snapshot import Snapshot
from program.errors import ProgramError, Refusal
from tests.conftest import Command, Machine
from tests.kernel import make_nodes
from tests.plugin.broken_files import (
    BREAKS,
    LOST,
    OF_ANOTHER_BOOT,
    OF_NO_BOOT,
    REASONS,
    assert_all_else_is_healthy,
    break_file,
)
from tests.plugin.dra.cluster import Cluster, running_cluster
from tests.plugin.dra.inside import Inside, inside, reference
from tests.plugin.kinds import bound as binding
from tests.plugin.kinds.cut import Node
from tests.plugin.test_state_files import FILES, MODULE_IDS
from tests.snapshots import look_at
from tests.vgpu_kernel import Card, l40s

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CARD, WHOLE = l40s(), Card(bus=0x81, id="10de:2204", driver="vfio-pci", possible=0)
RULE = {"device": "10de:26b9", "types": {"L40S-24Q": 2}}
NOTHING = OF_NO_BOOT | {OF_ANOTHER_BOOT}


def reason_of(kind: str) -> str:
    return f"({REASONS[kind]})" if kind in REASONS else "("


# journal.json, which `gpu-plugin vgpus apply` reads before the plugin serves.


class Cut:
    """A node with a card that is cut, and another one for guests that get it whole."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root, CARD, WHOLE)
        self.file = self.node.state / "journal.json"
        self.config = root / "config.yaml"
        self.dra_state = root / "dra"
        self.dra_state.mkdir()
        self.node.on(CARD)

    def apply(self, *rules: object, undo: bool = False) -> None:
        """Call the init container's command; its error is what it ends with."""
        self.config.write_text(yaml.safe_dump({"vgpus": [*rules]}))
        flags = VGPUsFlags(action=Action.APPLY, config=self.config, undo=undo)
        vgpus(replace(flags, sysfs=self.node.sys, state=self.node.state, dra_state=self.dra_state))

    def seen(self, pci_ids: PCIIDs) -> Snapshot:
        return look_at(self.node.sys, pci_ids, proc=self.node.proc, state=self.node.state)


@pytest.mark.parametrize("kind", BREAKS)
def test_whatever_has_become_of_the_journal_the_node_is_served_and_nothing_is_taken_away(
    kind: str, tmp_path: Path, pci_ids: PCIIDs, capfd: pytest.CaptureFixture[str]
) -> None:
    cut = Cut(tmp_path)
    cut.apply(RULE)
    made = cut.node.types(CARD)
    break_file(kind, cut.file, cut.file.read_text())
    capfd.readouterr()
    cut.apply()  # the config has no place for a vGPU any more
    assert cut.node.types(CARD) == made
    told, seen = capfd.readouterr().err, cut.seen(pci_ids)
    assert_all_else_is_healthy(seen)
    if kind in NOTHING:
        assert (told, seen.not_read) == ("", ())
        return
    assert f"gpu-plugin: no card is cut: {cut.file}: is not what gpu-plugin wrote {reason_of(kind)}" in told
    assert "and the vGPUs that are there are left to you" in told
    assert [str(each).partition(" (")[0] for each in seen.not_read] == [f"{cut.file}: is not what gpu-plugin wrote"]
    with pytest.raises(Refusal, match="is not what gpu-plugin wrote"):
        cut.apply(undo=True)


@pytest.mark.parametrize("kind", ["empty", "torn in the middle", "of zeros", "torn, then zeros"])
def test_after_a_power_loss_cards_are_cut_anew(kind: str, tmp_path: Path) -> None:
    cut = Cut(tmp_path)
    cut.apply(RULE)
    break_file(kind, cut.file, cut.file.read_text())
    cut.node.boot()
    cut.node.on(CARD)
    cut.apply(RULE)
    assert len(cut.node.types(CARD)) == len(cut.node.journal.types) == 2


def test_what_another_boot_made_is_somebody_elses_now(tmp_path: Path) -> None:
    cut = Cut(tmp_path)
    cut.apply(RULE)
    made = cut.node.types(CARD)
    cut.file.write_text(cut.file.read_text().replace('"boot-1"', '"boot-0"'))
    cut.apply(undo=True)
    assert cut.node.types(CARD) == made


@pytest.mark.parametrize("kind", sorted(BREAKS.keys() - {OF_ANOTHER_BOOT}))
def test_while_it_is_not_known_which_claims_have_what_cards_are_cut_and_nothing_is_taken_away(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cut = Cut(tmp_path)
    cut.apply(RULE)
    made = cut.node.types(CARD)
    cut.node.claim(next(iter(made)))
    file = cut.dra_state / "checkpoint.json"
    break_file(kind, file, file.read_text())
    capfd.readouterr()
    cut.apply({**RULE, "types": {"L40S-24Q": 1}})
    assert cut.node.types(CARD) == made
    told = capfd.readouterr().err
    assert f"nothing is taken away: {file}: is not what the driver wrote, so which cards are taken is not known" in told
    assert "for which the config has no place, and is in use by a claim, perhaps" in told
    cut.node.boot()
    cut.node.on(CARD)
    cut.apply(RULE)
    assert len(cut.node.types(CARD)) == 2


def test_a_vgpu_that_may_be_a_claims_is_given_to_nobody_and_none_is_made(tmp_path: Path, pci_ids: PCIIDs) -> None:
    cut = Cut(tmp_path)
    cut.apply(RULE)
    cut.file.write_text('{"boot": "boot-1"}')
    rule = VGPURule(device="10de:26b9", types={"L40S-24Q": 2, "L40S-8Q": 2}, when=When.CLAIMED)
    config = Config(serve=Serve.DRA, vgpus=(rule,))
    seen = look_at(cut.node.sys, pci_ids, config, proc=cut.node.proc, state=cut.node.state)
    there = [device for device in seen.inventory.offered if device.lead.vgpu_type is not None]
    assert_all_else_is_healthy(seen, *(device.id for device in there))
    reasons = {str(seen.reason(device)).partition(":")[0] for device in there}
    assert (len(there), reasons) == (2, {"is a vGPU that gpu-plugin may have made for a claim"})
    seen = replace(seen, host=replace(seen.host, vgpu_types={1155: "NVIDIA L40S-24Q"}))
    (card,) = claimable_cards(seen.host, config, pci_ids)
    devices, _ = claimable(seen, card, "node")
    assert {each["taints"][0]["value"].partition("-since")[0] for each in devices} == {"cannot-be-made"}


# The same file, which `gpu-plugin bind --all` reads before the plugin serves.


@pytest.mark.parametrize("kind", BREAKS)
def test_whatever_has_become_of_former_drivers_what_vfio_has_is_served(
    kind: str, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    node = binding.Node(tmp_path, binding.two_cards())
    node.carry_out(node.to_bind(binding.GPU))
    file = node.roots.state / "journal.json"
    break_file(kind, file, file.read_text())
    plan = node.to_bind_all()
    config = Config(serve=Serve.DRA, bind=Bind.WHEN_CLAIMED)
    seen = look_at(node.sys, pci_ids, config, proc=node.proc, dev=None, state=node.roots.state)  # type: ignore[arg-type]
    if kind in NOTHING:
        assert {str(move.address)[:-2] for move in plan.moves} == {binding.OTHER[:-2]}
        assert seen.journal_trouble is None
        return
    wrong = f"{file} is not what gpu-plugin wrote {reason_of(kind)}"
    assert plan.moves == ()
    (skipped,) = plan.skipped
    assert skipped.subject == binding.OTHER
    assert f"its former driver cannot be remembered: {wrong}" in skipped.wrong
    assert "remove it: unbind lets the kernel choose the drivers" in skipped.fix
    assert_all_else_is_healthy(seen, binding.OTHER)
    assert str(seen.reason(seen.inventory.by_id[binding.OTHER])).startswith(
        f"cannot be bound to vfio, since its driver could not be remembered: {file}: is not what gpu-plugin wrote ("
    )
    with pytest.raises(Refusal, match="its former driver cannot be remembered"):
        node.to_unbind(binding.GPU)


def test_bind_goes_on_without_the_cards_whose_drivers_it_could_not_remember(
    gpu_plugin: Command, tmp_path: Path
) -> None:
    node = binding.Node(tmp_path, binding.two_cards())
    node.carry_out(node.to_bind(binding.GPU))
    file = node.roots.state / "journal.json"
    break_file("a FIFO", file, "")
    places = ("--sysfs", node.sys, "--state", node.roots.state)
    done = gpu_plugin("bind", "--all", *places)
    assert done.stderr.startswith(
        f"gpu-plugin: skipped {binding.OTHER}: its former driver cannot be remembered: {file}"
    )
    assert (done.stdout, done.returncode) == ("nothing to do\n", 0)
    assert gpu_plugin("bind", binding.OTHER, *places).returncode == 1


# nvml.json and module-ids.json, which bind writes for people and for partitions.


@pytest.mark.parametrize("kind", BREAKS)
def test_whatever_has_become_of_uuids_and_module_ids_every_card_is_served(
    kind: str, machine: Machine, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    for name in ("nvml", "module-ids"):
        break_file(kind, tmp_path / f"{name}.json", (FILES / f"{name}.json").read_text())
    seen = look_at(machine("two-rtx-3090"), pci_ids, state=tmp_path)
    assert_all_else_is_healthy(seen)
    assert [str(each).partition(" (")[0] for each in seen.not_read] == [f"{tmp_path}/nvml.json: is not what bind wrote"]
    ids = read_module_ids(Fabric(), tmp_path)
    if kind != "without a field":  # there it is an ID fewer
        (fault,) = ids.faults
        assert fault.startswith(f"{tmp_path}/module-ids.json: has no module IDs in it (")
    if kind in LOST:
        keep(tmp_path, MODULE_IDS)
        assert read_module_ids(Fabric(), tmp_path).by_address == MODULE_IDS
    elif ids.faults:
        with pytest.raises(Refusal, match="has no module IDs in it"):  # bind warns
            keep(tmp_path, MODULE_IDS)


# checkpoint.json, which the DRA driver reads before it offers anything.

FIRST, SECOND = "0000:01:00.0", "0000:e1:00.0"
BOTH = Config(serve=Serve.DRA, offer=(Rule(address=SECOND, resource="example.com/gpu", serve=Serve.DEVICE_PLUGIN),))


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    with running_cluster(short_dir, copied_machine("two-rtx-3090")) as cluster:
        make_nodes(cluster.sys, cluster.directory / "dev")
        yield cluster


def test_whatever_has_become_of_the_checkpoint_only_the_cards_of_claims_wait(cluster: Cluster, pci_ids: PCIIDs) -> None:
    file = cluster.state / "checkpoint.json"

    async def life(driver: Inside) -> None:
        claims = driver.claims()
        claims.recall()
        first = reference(cluster.claim("pci-0000-01-00-0"))
        await claims.prepare(first)
        text, other = file.read_text(), reference(cluster.claim("pci-0000-01-00-0"))
        for kind in BREAKS:
            if kind == OF_ANOTHER_BOOT:
                continue
            break_file(kind, file, text)
            after = driver.claims()
            after.recall()
            seen = driver.watch.snapshot
            assert_all_else_is_healthy(seen, FIRST)
            assert {address.bus for address in seen.idle} == {0xE1}, "a guest's card is not looked at closely"
            reason = str(seen.reason(seen.inventory.by_id[FIRST]))
            assert reason.startswith(f"may have been prepared for a claim: {file}: is not what the driver wrote"), kind
            assert "end the pods of this node that have ResourceClaims, and remove the file" in reason
            # The first claim's pod may be running: another one gets nothing, and nothing is taken back from the first.
            for work in (after.prepare(other), after.unprepare(first), after.reconcile()):
                with pytest.raises(ProgramError, match="which cards are taken is not known"):
                    await work
            assert [*cluster.specifications()] == [first.uid]
            break_file("empty", file, "")
            file.write_text(text)
            after.recall()
            assert_all_else_is_healthy(driver.watch.snapshot)
            assert driver.watch.snapshot.claimed == {FIRST: str(first)}

    inside(cluster, pci_ids, life, BOTH)


@pytest.mark.parametrize("kind", sorted({*OF_NO_BOOT, OF_ANOTHER_BOOT}))
def test_after_a_power_loss_a_lost_checkpoint_is_begun_anew(kind: str, cluster: Cluster, pci_ids: PCIIDs) -> None:
    file = cluster.state / "checkpoint.json"

    async def life(driver: Inside) -> None:
        claims = driver.claims()
        first = reference(cluster.claim("pci-0000-01-00-0"))
        await claims.prepare(first)
        break_file(kind, file, file.read_text())
        for specification in cluster.cdi.iterdir():
            specification.unlink()  # a boot empties /var/run
        after = driver.claims()
        after.recall()
        await after.reconcile()
        assert_all_else_is_healthy(driver.watch.snapshot)
        assert await after.prepare(reference(cluster.claim("pci-0000-01-00-0")))

    inside(cluster, pci_ids, life, BOTH)
