"""VMs on a board with NVSwitches: by DRA they start on the cards on which they start by the device plugin, and whatever
the scheduler places there gpu-plugin can activate."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest

from launcher.choosing.claim import claim_for
from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import Fit, as_text, fit_of
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from launcher.vm.cards.claims import Entry, EntryKind, Request
from pci import slices as words
from pci.viability import Hindrance
from plugin.cards.inventory import Device
from plugin.dra.slices import device_name
from plugin.fabric.board import Board
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.status import FabricStatus
from plugin.node.snapshot import Snapshot
from program.problem import Problem
from tests.clusters import Object, board_of, claim_of, hgx, machine, slices_of, snapshot_of, with_board
from tests.fabric.standin import B200, H100, Sets

BOARDS = pytest.mark.parametrize("of", [H100, B200], ids=["H100", "B200"])
A100 = "nvidia.com/GA100_A100_SXM4_40GB"
NVLINK = {"gpu-launcher.dev/together": "nvlink"}


@cache
def node(of: tuple[int, Sets] = H100) -> tuple[Snapshot, Board]:
    """Eight free cards, modules 1 to 8 in the order of their addresses."""
    snapshot = snapshot_of(hgx())
    board = board_of(snapshot, of)
    return with_board(snapshot, board), board


def cards(snapshot: Snapshot, *modules: int) -> list[Device]:
    return [snapshot.inventory.published[module - 1] for module in modules]


def given(snapshot: Snapshot, *modules: int) -> Snapshot:
    """After these are prepared for claims."""
    return replace(snapshot, claimed=dict.fromkeys((card.id for card in cards(snapshot, *modules)), "default/vm"))


def fit(
    snapshot: Snapshot, gpus: int, annotations: Mapping[str, str] = NVLINK, taken: Sequence[Device] = ()
) -> tuple[Fit, tuple[Device, ...] | None]:
    """What it says of a VM of so many GPUs, on a node that has published the snapshot and whose claims have `taken`;
    and the VM's cards."""
    held = [claim_of("held", [("hgx", device_name(each)) for each in taken], "other")] if taken else []
    entries = [Entry(kind=EntryKind.GPU, name=f"g{number}", wants=A100) for number in range(gpus)]
    cluster = cluster_of([*slices_of(snapshot, "hgx"), *held])
    found = fit_of("default/vm", "default", entries, read_selection(annotations), (), cluster)
    by_name = {device_name(each): each for each in snapshot.inventory.published}
    return found, tuple(by_name[each.id.name] for each in found.fitting[0].devices or ()) if found.fitting else None


def by_device_plugin(snapshot: Snapshot, board: Board, gpus: int) -> tuple[str, ...] | None:
    """The kubelet's way: of the healthy devices that nobody has, the plugin's preference."""
    free = [each for each in snapshot.inventory.published if not (snapshot.reason(each) or snapshot.user(each))]
    return board.preferred(free, (), gpus, frozenset())


def by_dra(snapshot: Snapshot, gpus: int) -> tuple[str, ...] | None:
    _, its = fit(snapshot, gpus, taken=[each for each in snapshot.inventory.published if snapshot.user(each)])
    return None if its is None else tuple(sorted(card.id for card in its))


def test_with_one_vm_on_the_board_a_vm_of_two_gets_a_pair_that_is_whole() -> None:
    snapshot, board = node()
    one = given(snapshot, 1)
    _, its = fit(one, 2, taken=cards(snapshot, 1))
    assert its == tuple(cards(snapshot, 2, 4))
    assert board.partition(its) is not None
    # Published before the first VM came.
    assert fit(snapshot, 2, taken=cards(snapshot, 1))[1] == its


def test_several_gpus_that_need_no_nvlink_are_not_a_boards() -> None:
    """The scheduler would take modules 2 and 3, which are no partition, again and again."""
    found, its = fit(node()[0], 2, {}, taken=cards(node()[0], 1))
    assert its is None
    assert "excluded by several GPUs without gpu-launcher.dev/together: nvlink" in as_text(found)
    assert found.remedies == (
        (
            "write gpu-launcher.dev/together: nvlink (excludes 8 cards, 7 of them free): "
            "hgx then has 2 NVIDIA A100-SXM4-40GB"
        ),
    )
    assert fit(node()[0], 1, {})[1] is not None
    assert fit(snapshot_of(hgx()), 2, {})[1] is not None  # without a Fabric Manager


@pytest.mark.parametrize(
    ("version", "said"), [("580.159.03", "580.159.03"), (None, "the version of its Fabric Manager is")]
)
def test_a_vm_that_declares_its_driver_gets_a_partition_of_a_manager_of_that_version(
    version: str | None, said: str
) -> None:
    declared = NVLINK | {"gpu-launcher.dev/nvidia-driver": "580.126.09"}
    snapshot, board = node()
    assert fit(with_board(snapshot, replace(board, version="580.126.09")), 2, declared)[1] is not None
    other = with_board(snapshot, replace(board, version=version))
    found, its = fit(other, 2, declared)
    assert its is None
    assert f"excluded by gpu-launcher.dev/nvidia-driver '580.126.09': {said}" in as_text(found)
    assert fit(other, 1, declared)[1] is not None  # without NVLink any driver will do
    assert fit(snapshot_of(hgx()), 2, {**declared, "gpu-launcher.dev/together": "node"})[1] is not None


@pytest.mark.parametrize(
    ("attribute", "taken"),
    [(None, "0000:47:00.0, 0000:0f:00.0"), ("partition4", "0000:47:00.0, 0000:0f:00.0"), ("partition2", None)],
)
def test_a_claim_of_ones_own_that_gpu_plugin_would_refuse_does_not_fit(
    attribute: str | None, taken: str | None
) -> None:
    """Module 1 is another's; of the rest, 3 and 2 come first, and 2 and 4 are a pair."""
    (placement,) = own_claim(attribute).placements
    assert placement.reason == (REFUSED.format(taken) if taken else None)


REFUSED = (
    "the scheduler takes {}, which are no partition with NVLink, and gpu-plugin refuses them: "
    "ResourceClaim default/mine needs the constraint matchAttribute gpu-launcher.dev/partition2"
)


def own_claim(attribute: str | None, *others: Object) -> Fit:
    """What is said of a VM with a claim of its own of two GPUs, which share an attribute. On the board module 1 is
    another's."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu-launcher.dev", "count": 2}}],
                "constraints": [{"matchAttribute": f"gpu-launcher.dev/{attribute}"}] if attribute else [],
            }
        },
    }
    entries = [Entry(kind=EntryKind.GPU, name="g", wants=Request("gpus", "gpu"))]
    named = [NamedClaim("gpus", "ResourceClaim", "mine")]
    held = claim_of("held", [("hgx", device_name(each)) for each in cards(node()[0], 1)], "other")
    cluster = cluster_of([*slices_of(node()[0], "hgx"), held, claim, *others])
    return fit_of("default/vm", "default", entries, read_selection({}), named, cluster)


def test_a_node_that_fits_is_no_promise_if_the_scheduler_may_take_one_that_refuses_the_claim() -> None:
    rtx = slices_of(machine("two-rtx-3090"), "rtx")
    found = own_claim(None, *rtx)
    assert [each.node for each in found.fitting] == ["rtx"]
    (note,) = found.notes
    refused = REFUSED.format("0000:47:00.0, 0000:0f:00.0")
    assert note == f"the scheduler may take hgx instead, where the VM would never start: {refused}"
    assert f"note: {note}\n" in as_text(found)
    assert own_claim("partition2", *rtx).notes == ()


def test_a_size_that_no_partition_has_is_said() -> None:
    of = "gpu-launcher.dev/together 'nvlink'"
    (placement,) = fit(node()[0], 3)[0].placements
    assert placement.reason == f"of no card here that could be had the partition of 3 GPUs with NVLink is known ({of})"
    (placement,) = fit(node()[0], 4, taken=cards(node()[0], 1, 5))[0].placements
    assert placement.reason == f"not 4 of the cards that could be had share one partition of 4 GPUs with NVLink ({of})"


def test_cards_of_a_partition_that_is_active_for_somebody_else_are_nobodys() -> None:
    snapshot, board = node()
    strange = with_board(snapshot, board, 1)  # modules 1 to 4
    _, its = fit(strange, 4)
    assert its is not None
    assert set(its) == set(cards(snapshot, 5, 6, 7, 8))
    assert by_device_plugin(strange, board, 4) == tuple(sorted(card.id for card in its))
    assert fit(strange, 8)[1] is None
    wrong = "is in partition 1, which is active, and gpu-plugin does not know for whom"
    assert [why.wrong for why in strange.troubles.values()] == [wrong] * 4
    assert "tainted: gpu-launcher.dev/unhealthy=is-in-partition-1" in as_text(fit(strange, 8)[0])


def test_while_the_manager_is_away_no_card_is_placed_whose_partition_is_not_known() -> None:
    """As after a boot. Without the taint it would look like a card beside no board."""
    away = FabricStatus(trouble=Problem("the Fabric Manager", "cannot list its partitions", ""), is_awaited=True)
    snapshot = replace(node()[0], partitions=away)
    for gpus in (1, 2):
        found, its = fit(snapshot, gpus, {})
        assert its is None
        assert "tainted: gpu-launcher.dev/unhealthy=waits-for-the-Fabric-Manager" in as_text(found)
    assert fit(replace(snapshot, partitions=replace(away, is_awaited=False)), 2, {})[1] is not None  # it never had any


def test_a_card_of_unknown_module_goes_to_a_vm_of_one() -> None:
    snapshot, board = node()
    known = {address: module for address, module in board.ids.by_address.items() if module != 1}
    unknown = with_board(snapshot, replace(board, ids=ModuleIDs(known)))
    assert fit(unknown, 1)[1] == tuple(cards(snapshot, 1))
    assert fit(unknown, 2, taken=cards(snapshot, 2, 5, 6))[1] is None
    assert fit(unknown, 2, {}, taken=cards(snapshot, 2, 5, 6))[1] is None


@BOARDS
@pytest.mark.parametrize("sizes", [(2, 2, 4), (1, 1, 2, 4), (1, 1, 4, 2), (4, 1, 2, 1), (1,) * 8, (8,)])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "all before the first is prepared"])
def test_a_board_is_filled_in_any_order(of: tuple[int, Sets], sizes: tuple[int, ...], *, at_once: bool) -> None:
    snapshot, board = node(of)
    taken: list[Device] = []
    seen = snapshot
    for size in sizes:
        _, its = fit(seen, size, taken=taken)
        assert its is not None
        assert board.partition(its) is not None
        if not at_once:
            assert by_device_plugin(seen, board, size) == tuple(sorted(card.id for card in its))
            seen = replace(seen, claimed={card.id: "default/vm" for card in (*taken, *its)})
        taken += its
    assert len(taken) == 8


def test_after_an_activation_that_fails_the_next_vm_gets_other_cards() -> None:
    snapshot, board = node()
    failed = replace(snapshot, unlinked={card.id: Hindrance("has no NVLink", "") for card in cards(snapshot, 1, 3)})
    assert by_dra(failed, 2) == by_device_plugin(failed, board, 2) == tuple(card.id for card in cards(snapshot, 2, 4))


@BOARDS
def test_whatever_comes_and_goes_the_same_vms_start(of: tuple[int, Sets]) -> None:
    snapshot, board = node(of)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    any_ = random.Random(seed)
    vms: list[tuple[str, ...]] = []
    for _ in range(40):
        if vms and any_.random() < 0.5:
            vms.remove(any_.choice(vms))
        now = replace(snapshot, claimed={card: "default/vm" for vm in vms for card in vm})
        size = any_.choice([1, 1, 2, 2, 4, 8])
        its = by_dra(now, size)
        assert its == by_device_plugin(now, board, size), vms
        if its is not None:
            vms.append(its)


def test_nvlink_is_of_the_gpus() -> None:
    gpus = [Entry(kind=EntryKind.GPU, name=f"g{number}", wants=A100) for number in range(2)]
    nic = Entry(kind=EntryKind.HOST_DEVICE, name="n", wants="example.com/nic")
    partition = f"{words.DRIVER}/partition2"
    for entries, constraints in (
        (gpus, [{"matchAttribute": partition}]),
        ([*gpus, nic], [{"matchAttribute": partition, "requests": ["gpu-0", "gpu-1"]}]),
        ([gpus[0], nic], []),
    ):
        made = claim_for(entries, read_selection(NVLINK))
        assert made is not None
        assert [each.spec() for each in made.constraints] == constraints
        assert [len(request.selectors) for request in made.requests] == [1] * len(entries)
