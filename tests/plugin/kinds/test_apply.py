"""What `gpu-plugin vgpus apply` makes of cards, and what it leaves alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from pci.sysfs.functions import DEVICES
from plugin.cards.config import Config
from plugin.cards.vgpu_rules import Quota, VGPURule, When
from program.problem import Problem
from tests.kernel import bind
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import L40S, Card, a10, b60, l40s

CARD, MDEVS, XE = l40s(), a10(), b60()
HALVES = VGPURule(device="10de:26b9", types={"L40S-24Q": 2})
EIGHTHS = VGPURule(vendor="8086", functions=4, quota={Quota.VRAM: 2 << 30, Quota.EXEC_QUANTUM: 20})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, CARD, MDEVS, XE)


def names(node: Node, card: Card) -> list[str]:
    return sorted(node.types(card).values())


def test_a_card_of_nvidias_is_cut_into_vgpus_of_a_type_and_cut_anew_after_a_boot(node: Node) -> None:
    node.wants(HALVES)
    steps = [
        "0000:41:00.0: turn on its virtual functions (sriov-manage -e)",
        "0000:41:00.0: make a vGPU of type L40S-24Q",
        "0000:41:00.0: make a vGPU of type L40S-24Q",
    ]
    for _ in range(2):
        assert node.steps() == steps
        assert node.apply() == ()
        assert names(node, CARD) == ["NVIDIA L40S-24Q"] * 2
        assert node.steps() == []
        node.boot()
        assert names(node, CARD) == []


CLAIMED = VGPURule(device="10de:26b9", types={"L40S-24Q": 2, "L40S-8Q": 6}, when=When.CLAIMED)


def test_a_card_whose_vgpus_are_made_when_claimed_gets_its_virtual_functions_and_nothing_more(node: Node) -> None:
    node.wants(CLAIMED)
    assert node.steps() == ["0000:41:00.0: turn on its virtual functions (sriov-manage -e)"]
    assert node.apply() == ()
    assert (node.count(CARD), node.types(CARD), node.steps()) == (8, {}, [])
    node.wants(HALVES)
    node.apply()
    node.wants(CLAIMED)  # what is ours is the DRA driver's from here on
    assert (node.plan().changes, node.plan().problems) == ({}, ())
    node.config = Config()
    assert node.apply() == ()
    assert node.count(CARD) == 0


def test_sizes_that_claims_may_mix_are_allowed_before_there_is_a_vgpu(node: Node) -> None:
    node.wants(replace(CLAIMED, mixed_sizes=True))
    assert node.apply() == ()
    assert node.mixed == {CARD.address}
    node.write_type(CARD.function(1), 1155)
    assert node.steps() == []


def test_what_no_claim_could_have_of_a_card_is_an_error(node: Node) -> None:
    node.on(CARD)
    node.wants(VGPURule(device="10de:26b9", types={"L40S-2Q": 2, "L40S-8Q": 6}, when=When.CLAIMED))
    (problem,) = node.apply()
    assert problem.wrong == "can become no vGPU of type L40S-2Q"
    node.on(MDEVS)
    node.wants(VGPURule(device=MDEVS.id, types={"A10-8Q": 2, "A10-6Q": 2}, when=When.CLAIMED))
    (problem,) = node.apply()
    assert problem == Problem(MDEVS.address, "can become no vGPU of type A10-6Q", "name A10-24Q, A10-4Q, A10-8Q")


def test_a_card_whose_vgpus_are_mediated_devices_is_made_ready_for_claims(tmp_path: Path) -> None:
    older = Card(bus=0x81, id="10de:1eb8", possible=0, memory=16, mdevs={"nvidia-231": ("GRID T4-4Q", 4)})
    node = Node(tmp_path, MDEVS, older)
    node.wants(VGPURule(device=MDEVS.id, types={"A10-8Q": 3}, when=When.CLAIMED),
               VGPURule(device=older.id, types={"T4-4Q": 4}, when=When.CLAIMED))  # fmt: skip
    assert node.apply() == ()
    assert (node.count(MDEVS), names(node, MDEVS), names(node, older)) == (MDEVS.possible, [], [])
    assert node.steps() == []


def test_types_of_one_size_go_together_and_the_maker_may_stand_before_the_name(node: Node) -> None:
    node.wants(VGPURule(address="0000:41:00.0", types={"NVIDIA L40S-8Q": 2, "L40S-8A": 1}))
    assert node.apply() == ()
    assert names(node, CARD) == ["NVIDIA L40S-8A", "NVIDIA L40S-8Q", "NVIDIA L40S-8Q"]


def test_a_change_takes_ours_away_before_it_makes_others(node: Node) -> None:
    node.wants(HALVES)
    node.apply()
    node.wants(VGPURule(device="10de:26b9", types={"L40S-12Q": 4}))
    assert [step.partition(": ")[2].split()[0] for step in node.steps()] == ["remove", "remove", *["make"] * 4]
    assert node.apply() == ()
    assert names(node, CARD) == ["NVIDIA L40S-12Q"] * 4


def test_what_cannot_be_made_is_an_error_that_says_what_can_and_leaves_the_card_as_it_was(node: Node) -> None:
    node.on(CARD)
    node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1, "L40S-8Q": 1}))
    (problem,) = node.apply()
    assert str(problem) == (
        "0000:41:00.0: can become no further vGPU of type L40S-8Q, and the card is as it was before; "
        "it can become L40S-24Q"
    )
    assert names(node, CARD) == []
    assert node.journal.types == {}


def test_several_sizes_need_a_mode_that_the_card_gets_while_it_has_no_vgpu(node: Node) -> None:
    rule = VGPURule(device="10de:26b9", types={"L40S-24Q": 1, "L40S-8Q": 2}, mixed_sizes=True)
    for _ in range(2):
        node.wants(rule)
        assert node.apply() == ()
        assert names(node, CARD) == ["NVIDIA L40S-24Q", "NVIDIA L40S-8Q", "NVIDIA L40S-8Q"]
        assert node.log[:2] == ["sriov-manage -e 0000:41:00.0", "nvidia-smi vgpu -shm 1 -i 0000:41:00.0"]
        assert node.steps() == []
        node.boot()
        node.log.clear()


def test_free_vgpus_of_ours_go_for_that_mode(node: Node) -> None:
    node.wants(HALVES)
    node.apply()
    node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1, "L40S-8Q": 2}, mixed_sizes=True))
    assert node.apply() == ()
    assert names(node, CARD) == ["NVIDIA L40S-24Q", "NVIDIA L40S-8Q", "NVIDIA L40S-8Q"]


def test_a_card_with_a_vgpu_of_others_keeps_its_mode(node: Node) -> None:
    node.on(CARD)
    node.write_type(CARD.function(1), 1155)
    node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1, "L40S-8Q": 2}, mixed_sizes=True))
    (problem,) = node.apply()
    assert problem.wrong.startswith("can become no further vGPU of type L40S-8Q")
    assert (node.mixed, node.wrongs) == (set(), [])


def test_a_card_with_a_vgpu_in_use_keeps_its_mode_and_that_vgpu(node: Node) -> None:
    node.wants(HALVES)
    node.apply()
    used, _ = node.types(CARD)
    node.guests[used] = "qemu-system-x86 (pid 812)"
    node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1, "L40S-8Q": 2}, mixed_sizes=True))
    assert not any("allow vGPUs of several sizes" in step for step in node.steps())
    (problem,) = node.apply()
    assert problem.wrong.startswith("can become no further vGPU of type L40S-8Q")
    assert (node.mixed, node.wrongs, used in node.types(CARD)) == (set(), [], True)


def test_a_type_without_its_gpu_instance_says_so(tmp_path: Path) -> None:
    types = {1414: ("NVIDIA H200X-1-18C", 18, 7)}
    card = Card(bus=0x41, id="10de:2335", memory=141, types=types, without_instance=frozenset(types))
    node = Node(tmp_path, card)
    node.wants(VGPURule(vendor="10de", types={"H200X-1-18C": 1}))
    (problem,) = node.apply()
    assert problem.wrong.startswith("has no GPU instance for a vGPU of type H200X-1-18C")
    assert "nvidia-smi mig -i 0000:41:00.0 -cgi PROFILE -C" in problem.fix
    assert (node.count(card), node.journal.functions) == (0, {})  # the virtual functions are off again, too


def test_mediated_devices_are_made_the_same_way_by_virtual_function_or_on_an_older_card(tmp_path: Path) -> None:
    older = Card(bus=0x81, id="10de:1eb8", possible=0, memory=16, mdevs={"nvidia-231": ("GRID T4-4Q", 4)})
    node = Node(tmp_path, MDEVS, older)
    node.wants(VGPURule(vendor="10de", device="10de:2236", types={"A10-8Q": 3}),
               VGPURule(vendor="10de", types={"T4-4Q": 4}))  # fmt: skip
    assert node.apply() == ()
    assert names(node, MDEVS) == ["NVIDIA A10-8Q"] * 3
    assert names(node, older) == ["GRID T4-4Q"] * 4
    node.wants(VGPURule(device="10de:1eb8", types={"T4-4Q": 1}))
    assert node.apply() == ()
    assert (names(node, MDEVS), node.count(MDEVS), names(node, older)) == ([], 0, ["GRID T4-4Q"])


def test_xes_functions_have_their_quota_before_they_are_there_and_vfio_for_a_driver(node: Node) -> None:
    node.wants(EIGHTHS)
    assert node.steps()[0] == "0000:03:00.0: keep the host's drivers from new virtual functions"
    assert node.apply() == ()
    written = [line for line in node.log if "0000:03:00.0/" in line]
    place = "/sys/bus/pci/devices/0000:03:00.0"
    assert written[0] == f"echo 0 > {place}/sriov_drivers_autoprobe"
    assert written[-2:] == [f"echo 4 > {place}/sriov_numvfs", f"echo 1 > {place}/sriov_drivers_autoprobe"]
    assert f"echo {2 << 30} > {place}/sriov_admin/vf4/profile/vram_quota" in written[1:-2]
    (card,) = node.survey().cards
    assert [function.driver for function in card.functions] == ["vfio-pci"] * 4
    assert node.steps() == []


def test_a_kernel_with_xes_own_vfio_driver_gets_that(tmp_path: Path) -> None:
    node = Node(tmp_path, XE, drivers=("vfio-pci", "xe-vfio-pci"))
    node.wants(EIGHTHS)
    assert node.apply() == ()
    assert {function.driver for function in node.survey().cards[0].functions} == {"xe-vfio-pci"}


def test_another_number_of_functions_goes_by_way_of_none_and_only_if_they_are_ours_and_free(node: Node) -> None:
    node.wants(EIGHTHS)
    node.apply()
    node.wants(VGPURule(vendor="8086", functions=2))
    node.guests[XE.function(3)] = "qemu-system-x86 (pid 812)"
    (problem,) = node.apply()
    assert problem.wrong == ("has 4 virtual functions, expected 2: 0000:03:00.6 is in use by qemu-system-x86 (pid 812)")
    node.guests.clear()
    assert node.apply() == ()
    assert node.count(XE) == 2
    node.boot()
    node.on(XE, 3)
    (problem,) = node.apply()
    assert problem.wrong == "has 3 virtual functions, expected 2: somebody else made them"
    assert node.count(XE) == 3


@pytest.mark.parametrize(
    ("driver", "count", "wrong"),
    [
        ("gim", 8, "has 0 virtual functions, expected 8: gim makes them when it is loaded"),
        ("nvidia", 8, "is on nvidia, which turns on all virtual functions at once"),
        ("i915", 9, "can have 8 virtual functions, expected 9"),
        (None, 4, "has no driver, so it can have no virtual functions"),
        ("vfio-pci", 4, "is on vfio-pci, for guests that get it whole, and the config cuts it into vGPUs"),
    ],
)
def test_a_card_whose_driver_cannot_do_it_is_an_error(
    tmp_path: Path, driver: str | None, count: int, wrong: str
) -> None:
    card = Card(bus=0x03, id="1002:74a1", driver=driver)
    node = Node(tmp_path, card)
    node.wants(VGPURule(vendor="1002", functions=count))
    (problem,) = node.apply()
    assert (problem.wrong, node.log) == (wrong, [])


def test_gims_functions_are_taken_as_they_are(tmp_path: Path) -> None:
    card = Card(bus=0x03, id="1002:74a1", driver="gim")
    node = Node(tmp_path, card)
    node.on(card)
    node.wants(VGPURule(vendor="1002", functions=8))
    assert (node.apply(), node.log) == ((), [])


def test_a_card_on_a_driver_that_makes_no_vgpus_is_an_error(node: Node) -> None:
    bind(node.sys, CARD.address, "nouveau")
    node.wants(HALVES)
    (problem,) = node.apply()
    assert problem.wrong == "is on nouveau, and has neither a list of vGPU types nor of mediated devices"


@pytest.mark.parametrize("driver", ["nvidia", None])
def test_functions_of_which_no_vgpu_can_be_made_are_an_error(tmp_path: Path, driver: str | None) -> None:
    card = Card(bus=0x41)
    node = Node(tmp_path, card)
    node.on(card)
    bind(node.sys, card.address, driver)
    node.wants(HALVES)
    (problem,) = node.apply()
    assert problem.wrong.startswith(f"is on {driver or 'no driver'} with 8 virtual functions, and has neither a")
    assert (node.log, node.count(card)) == ([], 8)


def test_undo_and_apply_turn_the_functions_of_a_card_off_and_on(node: Node) -> None:
    node.wants(HALVES)
    node.apply()
    node.log.clear()
    for rules in ((), (HALVES,)):
        node.wants(*rules)
        assert node.apply() == ()
    assert [line for line in node.log if "sriov-manage" in line] == [
        f"sriov-manage {flag} {CARD.address}" for flag in ("-d", "-e")
    ]


def test_functions_need_a_vfio_driver(tmp_path: Path) -> None:
    node = Node(tmp_path, XE, drivers=())
    node.wants(EIGHTHS)
    (problem,) = node.apply()
    assert problem.fix == "modprobe vfio-pci"


def test_what_others_made_counts_and_is_never_touched(node: Node) -> None:
    node.on(CARD)
    node.write_type(CARD.function(1), 1155)
    node.wants(HALVES)
    assert node.steps() == ["0000:41:00.0: make a vGPU of type L40S-24Q"]
    assert node.apply() == ()
    node.wants()
    assert node.apply() == ()
    assert node.types(CARD) == {CARD.function(1): "NVIDIA L40S-24Q"}
    assert node.count(CARD) == 8
    assert node.wrongs == []


def test_our_virtual_functions_stay_on_while_somebody_else_has_a_vgpu_of_them(node: Node) -> None:
    node.wants(replace(HALVES, types={"L40S-24Q": 1}))
    node.apply()
    node.write_type(CARD.function(5), 1155)
    node.wants()
    assert [step.partition(": ")[2].split()[0] for step in node.steps()] == ["remove"]
    assert node.apply() == ()
    assert (node.types(CARD), node.count(CARD)) == ({CARD.function(5): "NVIDIA L40S-24Q"}, 8)
    node.write_type(CARD.function(5), 0)
    planned = node.plan()
    node.write_type(CARD.function(6), 1155)  # faster than we are
    (problem,) = node.carry_out(planned)
    assert problem.wrong.startswith(f"its virtual functions are in use: {CARD.function(6)}")
    assert (node.types(CARD), node.count(CARD), node.wrongs) == ({CARD.function(6): "NVIDIA L40S-24Q"}, 8, [])


def test_functions_that_are_in_use_stay_and_their_user_is_named(node: Node) -> None:
    node.wants(EIGHTHS)
    node.apply()
    node.guests[XE.function(3)] = "qemu-system-x86 (pid 812)"
    node.wants()
    (problem,) = node.apply()
    assert problem.wrong == (
        "has virtual functions for which the config has no place: 0000:03:00.6 is in use by qemu-system-x86 (pid 812)"
    )
    assert node.count(XE) == 4


@pytest.mark.parametrize("user", ["guest", "pod", "group", "peer"])
def test_what_is_in_use_stays_whoever_says_so(node: Node, user: str) -> None:
    node.wants(HALVES)
    node.apply()
    first = CARD.function(1)
    group = str(0x41 * 64 + 1)
    if user == "guest":
        node.guests[first] = "qemu-system-x86 (pid 812)"
    else:
        device_id = {"pod": first, "group": group, "peer": XE.address}[user]
        node.pods[device_id] = "default/vm"
    if user == "peer":
        link = node.sys / DEVICES / XE.address / "iommu_group"
        link.unlink()
        link.symlink_to(f"../../../../kernel/iommu_groups/{group}")
    node.wants()
    (problem,) = node.apply()
    assert problem.subject == first
    assert "is in use by " in problem.wrong
    assert node.types(CARD) == {first: "NVIDIA L40S-24Q"}
    node.guests.clear()
    node.pods.clear()
    assert node.apply() == ()
    assert (node.types(CARD), node.count(CARD)) == ({}, 0)


def test_a_vgpu_that_a_guest_gets_while_the_plan_is_made_stays(node: Node) -> None:
    node.wants(HALVES)
    node.apply()
    node.wants()
    planned = node.plan()
    node.guests[CARD.function(2)] = "qemu-system-x86 (pid 812)"
    (problem,) = node.carry_out(planned)
    assert problem.wrong == "is in use by qemu-system-x86 (pid 812), and the card is as it was before"
    assert names(node, CARD) == ["NVIDIA L40S-24Q"] * 2


def test_one_card_that_fails_keeps_no_other_from_being_cut(node: Node) -> None:
    node.wants(VGPURule(device="10de:26b9", types={"L40S-2Q": 1}), EIGHTHS)
    (problem,) = node.apply()
    assert problem.subject == "0000:41:00.0"
    assert node.count(XE) == 4


@pytest.mark.parametrize("before", [["fails"], ["does nothing"], ["unbinds"], ["fails", "does nothing"]])
def test_sriov_manage_is_called_again_when_it_fails_or_only_says_that_it_worked(node: Node, before: list[str]) -> None:
    node.script = list(before)
    node.wants(HALVES)
    assert node.apply() == ()
    calls = [line for line in node.log if line.startswith("sriov-manage")]
    assert calls == ["sriov-manage -e 0000:41:00.0"] * (len(before) + 1)


@pytest.mark.parametrize("does", ["fails", "does nothing", "unbinds"])
def test_sriov_manage_that_never_works_is_an_error_and_the_card_has_its_driver(node: Node, does: str) -> None:
    node.script = [does] * 5
    node.wants(HALVES)
    (problem,) = node.apply()
    assert problem.wrong.startswith(
        "has no virtual functions of which vGPUs can be made after 5 calls of sriov-manage -e"
    )
    assert ("unbindLock" in problem.wrong) == (does == "fails")
    assert node.survey().cards[0].function.driver == "nvidia"
    assert node.journal.functions == {}


def test_a_type_that_no_list_names_any_more_keeps_the_name_that_it_had(tmp_path: Path) -> None:
    card = Card(bus=0x41, types={1156: L40S[1156]}, possible=1)
    node = Node(tmp_path, card)
    node.wants(VGPURule(vendor="10de", types={"L40S-48Q": 1}))
    assert node.apply() == ()
    assert node.survey().types == {1156: "NVIDIA L40S-48Q"}
    assert node.steps() == []
