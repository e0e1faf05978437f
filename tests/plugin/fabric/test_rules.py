"""What a correct owner of partitions does, rule by rule, beside a manager in C; of what fails: test_faults.py."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugin.cards.config import Fabric
from plugin.fabric.abi import Code
from plugin.fabric.activations import Owners, owners_file
from program.errors import Refusal
from tests.fabric.standin import A100_16, B200, H100, Call, Manager
from tests.plugin.fabric.boards import ADDRESSES, MODULE_OF, board
from tests.plugin.fabric.node import Node, device, run

Give = Callable[..., Coroutine[Any, Any, None]]


@pytest.fixture
def node(manager: Manager, tmp_path: Path) -> Node:
    return Node(manager, tmp_path / "state")


# 1. By physical ID and exact set.


def test_cards_are_a_partition_by_their_module_ids(node: Node) -> None:
    run(node.allocate(node.partitions(), "default/vm", 1, 3))
    assert node.manager.active == {(1, 3)}


def test_cards_that_are_none_are_refused_and_nothing_is_activated(node: Node) -> None:
    with pytest.raises(Refusal, match="are modules 1, 2, which are no partition of the Fabric Manager; the nearest"):
        run(node.allocate(node.partitions(), "default/vm", 1, 2))
    assert node.manager.log == []


def test_ids_of_partitions_begin_where_the_board_begins(libnvfm: Path, tmp_path: Path) -> None:
    node = Node(Manager(libnvfm, tmp_path, B200), tmp_path / "state")
    run(node.allocate(node.partitions(), "default/vm", 1, 2))
    assert node.manager.log == ["activate 4"]


# 2. Without a module ID a card is for guests of one GPU.


def test_a_card_of_unknown_id_works_by_itself(manager: Manager, tmp_path: Path) -> None:
    known = {address: module for module, address in ADDRESSES.items() if module != 1}
    node = Node(manager, tmp_path / "state", modules=known)
    partitions = node.partitions()
    run(node.allocate(partitions, "default/one", 1))
    assert node.manager.active == set()
    with pytest.raises(Refusal, match=f"the module ID of {ADDRESSES[1]} is not known"):
        run(node.allocate(partitions, "default/two", 1, 3))


# 3. Activated before the guest can start, or the allocation fails.


@pytest.mark.parametrize("code", [code for code in Code if code])
def test_an_allocation_fails_where_the_activation_does(code: Code, node: Node) -> None:
    node.manager.answers(Call.ACTIVATE, code)
    with pytest.raises(Refusal, match=rf"partition 3: the Fabric Manager cannot activate it: {code.name} \({code}\)"):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))


def test_a_guest_of_one_gpu_has_its_partition_too(node: Node) -> None:
    run(node.allocate(node.partitions(), "default/vm", 5))
    assert node.manager.active == {(5,)}


def test_all_containers_of_a_pod_have_theirs_or_none(node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        devices = [[device(1), device(3)], [device(5), device(6)]]
        with pytest.raises(Refusal, match="modules 5, 6"):
            await partitions.acquire(devices)

    run(life())
    assert node.manager.active == set()
    assert owners_file(node.state).read() == Owners()


# 4. One at a time, a connection for each operation.


def test_requests_at_once_do_not_take_from_each_other(node: Node) -> None:
    async def life() -> None:
        partitions, other = node.partitions(), node.partitions()  # as in a rolling update
        pairs = [(1, 3), (2, 4), (5, 7), (6, 8)]
        each = [(partitions, other)[number % 2] for number in range(4)]
        await asyncio.gather(
            *(node.allocate(each[number], f"default/vm-{number}", *pair) for number, pair in enumerate(pairs))
        )

    run(life())
    assert node.manager.active == {(1, 3), (2, 4), (5, 7), (6, 8)}
    owners = owners_file(node.state).read()
    assert owners is not None
    assert [each.modules for each in owners.activations] == [(1, 3), (2, 4), (5, 7), (6, 8)]


def test_of_two_that_want_one_card_at_once_one_gets_it(node: Node) -> None:
    async def life() -> None:
        partitions, other = node.partitions(), node.partitions()
        node.lists = False  # the kubelet does not say that either is gone
        outcomes = await asyncio.gather(
            node.allocate(partitions, None, 1, 3), node.allocate(other, None, 1, 2, 3, 4), return_exceptions=True
        )
        assert sum(isinstance(each, Refusal) for each in outcomes) == 1

    run(life())
    assert len(node.manager.active) == 1


@pytest.mark.parametrize("code", [Code.NOT_CONFIGURED, Code.CONNECTION_NOT_VALID])
def test_a_manager_that_is_just_starting_is_asked_again(code: Code, node: Node) -> None:
    node.manager.answers(Call.GET, code, times=2)
    owners_file(node.state).write(Owners())
    run(node.allocate(node.partitions(), "default/vm", 1, 3))
    assert node.manager.active == {(1, 3)}


# 5. What is active is one's own by what is written down; nobody is evicted.


@pytest.mark.parametrize("modules", [(1, 3), (1, 2, 3, 4), (1,)])
def test_a_partition_that_another_activated_is_neither_taken_nor_evicted(modules: tuple[int, ...], node: Node) -> None:
    node.manager.activated_by_another(*modules)
    with pytest.raises(Refusal, match="which is active, and gpu-plugin does not know for whom"):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))
    assert node.manager.active == {modules}
    assert node.manager.log == []


def test_a_claim_that_is_prepared_again_has_what_it_has(node: Node) -> None:
    async def life() -> None:
        await node.prepare(node.partitions(), "claim-1", 1, 3)
        await node.prepare(node.partitions(), "claim-1", 1, 3)
        with pytest.raises(Refusal, match="would overlap partition 3 of claim claim-1, which is not known to be gone"):
            await node.prepare(node.partitions(), "claim-2", 1, 3)
        with pytest.raises(Refusal, match="claim claim-1"):
            await node.allocate(node.partitions(), "default/vm", 1, 2, 3, 4)

    run(life())
    assert node.manager.log == ["activate 3"]


def test_a_claim_never_takes_from_a_pod(node: Node) -> None:
    async def life() -> None:
        await node.allocate(node.partitions(), None, 1, 3)
        with pytest.raises(Refusal, match="of a pod that the kubelet has not listed yet"):
            await node.prepare(node.partitions(), "claim", 1, 3)

    run(life())
    assert node.manager.active == {(1, 3)}


def test_cards_that_the_kubelet_gives_out_anew_are_taken_from_a_pod_that_is_gone(node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        await node.allocate(partitions, "default/first", 1, 3)
        del node.pods["default/first"]
        await node.allocate(partitions, "default/second", 1, 2, 3, 4)

    run(life())
    assert node.manager.log == ["activate 3", "deactivate 3", "activate 1"]


def test_cards_of_a_pod_that_is_still_listed_are_not_given_out_anew(node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        await node.allocate(partitions, "default/first", 1, 3)
        with pytest.raises(Refusal, match="would overlap partition 3 of"):
            await node.allocate(partitions, "default/second", 1, 2, 3, 4)

    run(life())
    assert node.manager.active == {(1, 3)}


# 6. Deactivated when the guest is known to be gone, and only then.


def test_a_partition_goes_with_its_pod(node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        await node.allocate(partitions, "default/vm", 1, 3)
        await partitions.reconcile()
        assert node.manager.active == {(1, 3)}
        del node.pods["default/vm"]
        await partitions.reconcile()

    run(life())
    assert node.manager.log == ["activate 3", "deactivate 3"]
    assert owners_file(node.state).read() == Owners()


@pytest.mark.parametrize("lists", [True, False], ids=["a kubelet that starts", "a kubelet that is gone"])
def test_a_kubelet_that_does_not_list_all_pods_says_nothing_of_any(lists: bool, node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        await node.allocate(partitions, "default/vm", 1, 3)
        await partitions.reconcile()
        node.is_whole, node.lists = False, lists
        node.pods.clear()
        for _ in range(3):
            await partitions.reconcile()
        with pytest.raises(Refusal):
            await node.allocate(partitions, "default/other", 1)

    run(life())
    assert node.manager.log == ["activate 3"]


def test_an_active_partition_of_nobody_known_is_left_alone_and_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.manager.activated_by_another(2, 4)

    async def life() -> None:
        partitions = node.partitions()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await partitions.reconcile()
        assert [each.modules for each in partitions.sight.others] == [(2, 4)]

    run(life())
    assert caplog.messages == ["partition 4 is active, and gpu-plugin does not know for whom: it is left alone"]
    assert node.manager.active == {(2, 4)}


def test_a_claim_has_its_partition_until_it_is_released(node: Node) -> None:
    async def life() -> None:
        partitions = node.partitions()
        await node.prepare(partitions, "claim", 1, 3)
        for _ in range(3):
            await partitions.reconcile()
        assert node.manager.active == {(1, 3)}
        await partitions.release("claim")
        await partitions.release("claim")

    run(life())
    assert node.manager.log == ["activate 3", "deactivate 3"]


def test_what_is_told_of_the_board_is_what_it_is_now(node: Node) -> None:
    def place() -> Mapping[str, int | str]:
        board = node.told[-1].board
        assert board is not None
        return board.attributes(device(3))

    async def life() -> None:
        partitions = node.partitions()
        await partitions.reconcile()
        assert place()["partition2"] == 3
        await node.prepare(partitions, "claim", 1, 3)
        assert [each.claim for each in node.told[-1].owners.activations] == ["claim"]
        assert place()["partition2"] == 3
        assert node.settings is not None
        node.settings = replace(node.settings, modules={})
        await partitions.reconcile()
        assert place() == {"moduleID": 0}

    run(life())


def test_what_was_activated_for_a_pod_that_never_came_goes_too(node: Node) -> None:
    async def life() -> None:
        await node.allocate(node.partitions(), None, 1, 3)
        await node.partitions().reconcile()

    run(life())
    assert node.manager.active == set()


# 7. Written down before it is activated; a manager that was restarted gets it back.


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"activations": [{}], "others": []}', "[" * 100_000])
def test_a_book_that_is_none_is_not_an_empty_one(text: str, node: Node) -> None:
    node.state.mkdir()
    (node.state / "partitions.json").write_text(text)
    with pytest.raises(Refusal, match="is not what gpu-plugin wrote, and nobody knows who has which partition"):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))
    assert node.manager.log == []


@pytest.mark.parametrize("give", [Node.allocate, Node.prepare], ids=["device plugin", "DRA"])
def test_a_manager_that_has_lost_its_partitions_gets_them_again_before_new_work(give: Give, node: Node) -> None:
    async def life() -> None:
        await give(node, node.partitions(), "vm", 1, 3)
        node.manager.restart(initialises=1)
        await give(node, node.partitions(), "other", 2, 4)

    run(life())
    assert node.manager.log == ["activate 3", "activate 3", "activate 4"]


@pytest.mark.parametrize("sizes", [(2, 2, 4), (1, 1, 2, 4), (1, 1, 4, 2), (8,)])
@pytest.mark.parametrize("give", [Node.allocate, Node.prepare], ids=["device plugin", "DRA"])
def test_vms_fill_a_board_whatever_fails_once_and_have_it_after_the_managers_restart(
    give: Give, sizes: tuple[int, ...], node: Node
) -> None:
    chosen = preferred_by_the_plugin if give is Node.allocate else taken_by_the_scheduler
    free = set(ADDRESSES)

    async def life() -> None:
        partitions = node.partitions()
        node.manager.answers(Call.ACTIVATE, Code.GENERIC_ERROR, times=1)
        with pytest.raises(Refusal, match="cannot activate it: GENERIC_ERROR"):
            await give(node, partitions, "vms/vm-0", *chosen(free, sizes[0]))
        for number, size in enumerate(sizes):
            its = chosen(free, size)
            await give(node, partitions, f"vms/vm-{number}", *its)
            free.difference_update(its)
        node.manager.restart(initialises=1)
        await partitions.reconcile()

    run(life())
    assert not free
    assert sorted(map(len, node.manager.active)) == sorted(sizes)


def preferred_by_the_plugin(free: set[int], size: int) -> tuple[int, ...]:
    its = board(H100).preferred([device(module) for module in sorted(free)], (), size, frozenset())
    assert its is not None
    return tuple(MODULE_OF[address] for address in its)


def taken_by_the_scheduler(free: set[int], size: int) -> tuple[int, ...]:
    """The first GPUs, in the order of the slices, that have one partition of the size: tests/launcher/choosing has
    `fit` on such slices, and tests/bench/cluster.py the scheduler."""
    its = board(H100)
    order = sorted(map(device, free), key=lambda each: its.order(each, frozenset(free)))
    for first in order:
        same = [
            each
            for each in order
            if its.attributes(each)[f"partition{size}"] == its.attributes(first)[f"partition{size}"]
        ]
        if len(same) == size:
            return tuple(MODULE_OF[each.id] for each in same)
    raise AssertionError(f"no place for {size} on {sorted(free)}")


def test_a_manager_that_resumes_gets_its_list(manager: Manager, tmp_path: Path) -> None:
    node = Node(manager, tmp_path / "state", resume=True)
    manager.activated_by_another(5, 7)

    async def life() -> None:
        partitions = node.partitions()
        await node.allocate(partitions, "default/vm", 1, 3)
        manager.restart(initialises=1, wants_list_within=30)
        await partitions.reconcile()

    run(life())
    # Also what is another's: it would be taken for inactive, and be activated under a guest.
    assert manager.log == ["activate 3", "set 3,5"]
    assert manager.active == {(1, 3), (5, 7)}


def test_a_manager_that_resumes_and_has_had_nothing_gets_an_empty_list(manager: Manager, tmp_path: Path) -> None:
    node = Node(manager, tmp_path / "state", resume=True)
    manager.restart(wants_list_within=30)
    run(node.partitions().reconcile())
    assert manager.log == ["set "]


def test_a_manager_that_resumes_is_looked_at_often_enough(manager: Manager, tmp_path: Path) -> None:
    assert Node(manager, tmp_path, resume=True).partitions(every=60).next_reconcile == 15
    assert Node(manager, tmp_path).partitions(every=60).next_reconcile == 60


@pytest.mark.parametrize("give", [Node.allocate, Node.prepare], ids=["device plugin", "DRA"])
def test_links_that_do_not_train_make_their_cards_unhealthy(give: Give, node: Node) -> None:
    node.manager.breaks_links(3)
    with pytest.raises(Refusal, match="NVLINK_ERROR"):
        run(give(node, node.partitions(), "vm", 1, 3))
    assert node.unlinked_modules == {1, 3}
    assert owners_file(node.state).read() == Owners()


# 8. What the manager counts has a bound.


@pytest.mark.parametrize("number", [17, 65, 2**32 - 1])
def test_more_than_there_can_be_is_no_answer(number: int, node: Node) -> None:
    owners_file(node.state).write(Owners())
    node.manager.claims(number)
    with pytest.raises(Refusal, match="cannot list its partitions"):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))


# 9. By set: a GPU is in several partitions of a size.


def test_eight_of_sixteen_gpus(libnvfm: Path, tmp_path: Path) -> None:
    modules = {ADDRESSES[module]: module if module < 5 else module + 8 for module in ADDRESSES}
    node = Node(Manager(libnvfm, tmp_path, A100_16), tmp_path / "state", modules=modules)
    run(node.allocate(node.partitions(), "default/vm", *range(1, 9)))
    assert node.manager.active == {(1, 2, 3, 4, 13, 14, 15, 16)}


# Without a fabric.


@pytest.mark.parametrize("why", ["no library", "no manager", "another mode", "not in the config"])
def test_a_node_that_never_had_partitions_serves_as_without(
    why: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    match why:
        case "no library":
            node.settings = Fabric(library="libnvfm.so.none")
        case "no manager":
            node.manager.stop()
        case "another mode":
            node.manager.mode(0)
        case _:
            node.settings = None

    async def life() -> None:
        partitions = node.partitions()
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                await partitions.reconcile()
            await node.allocate(partitions, "default/vm", 1, 2)

    run(life())
    assert len(caplog.messages) == (0 if node.settings is None else 1)
    assert not (node.state / "partitions.json").exists()


def test_a_manager_that_is_there_and_still_starts_is_waited_for(node: Node) -> None:
    node.manager.restart(initialises=10)
    with pytest.raises(Refusal, match="cannot list its partitions: NOT_CONFIGURED"):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))


@pytest.mark.parametrize("why", ["no library", "no manager"])
def test_a_node_that_had_partitions_does_not_do_without(why: str, node: Node) -> None:
    run(node.partitions().reconcile())
    if why == "no library":
        node.settings = Fabric(library="libnvfm.so.none")
    else:
        node.manager.stop()
    with pytest.raises(Refusal):
        run(node.allocate(node.partitions(), "default/vm", 1, 3))
    # A plugin that starts then, as after a boot, cannot say what is free.
    run(node.partitions(every=60).reconcile())
    assert node.told[-1].is_awaited


def test_a_manager_that_hangs_ends_no_more_than_its_question(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    run(node.partitions().reconcile())
    node.manager.hangs(Call.GET)

    async def life() -> None:
        partitions = node.partitions()
        with caplog.at_level(logging.WARNING):
            await partitions.reconcile()
            await partitions.reconcile()
        assert partitions.sight.trouble is None

    run(life())
    assert len(caplog.messages) == 1
    assert "does not answer within 10 s" in caplog.messages[0]
