"""`gpu-plugin vgpus`: the whole program, on a tree of files that do not react."""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from plugin.cards.vgpu_rules import VGPURule
from plugin.changes.engine import Failed
from plugin.commands.vgpus import call, lines
from tests.conftest import Command, Machine
from tests.kubelet import Kubelet
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import Card, b60, l40s

CARD = l40s()
HALVES = [{"device": "10de:26b9", "types": {"L40S-24Q": 2}}]


class Program:
    def __init__(self, root: Path, gpu_plugin: Command, *cards: Card) -> None:
        self.node, self._run, self._config = Node(root, *cards), gpu_plugin, root / "config.yaml"
        self.dra_state: tuple[str | Path, ...] = ("--dra-state", root / "dra")
        (root / "dra").mkdir()

    def __call__(self, *arguments: str, vgpus: object = HALVES, **more: Mapping[str, str]) -> tuple[str, str, int]:
        self._config.write_text(yaml.safe_dump({"vgpus": vgpus}))
        places = ("--sysfs", self.node.sys, "--state", self.node.state, "--config", self._config)
        done = self._run("vgpus", *arguments, *places, *self.dra_state, **more)
        return done.stdout, done.stderr, done.returncode


@pytest.fixture
def program(tmp_path: Path, gpu_plugin: Command) -> Program:
    return Program(tmp_path, gpu_plugin, CARD)


MADE = "0000:41:00.0: make a vGPU of type L40S-24Q\n"


def test_it_prints_the_difference_makes_it_and_knows_what_is_its_own(program: Program) -> None:
    program.node.on(CARD)
    assert program("--dry-run") == (MADE * 2, "", 0)
    assert program.node.types(CARD) == {}
    assert program("apply") == (MADE * 2, "", 0)
    assert set(program.node.types(CARD).values()) == {"NVIDIA L40S-24Q"}
    assert program("apply") == ("nothing to do\n", "", 0)
    removed = [f"0000:41:00.0: remove the vGPU of type L40S-24Q on {CARD.function(number)}\n" for number in (1, 2)]
    assert program("--dry-run", "--undo") == ("".join(removed), "", 0)


def test_without_a_verb_it_shows_what_cards_are_cut_into(program: Program) -> None:
    assert program() == ("0000:41:00.0: on nvidia, 0 of 8 virtual functions\n", "", 0)
    program.node.wants(VGPURule(device="10de:26b9", types={"L40S-12Q": 2}))
    program.node.apply()
    program.node.write_type(CARD.function(3), 1154)
    assert program()[0].splitlines() == [
        "0000:41:00.0: on nvidia, 8 of 8 virtual functions, made by gpu-plugin",
        f"  {CARD.function(1)}: L40S-12Q, made by gpu-plugin, free",
        f"  {CARD.function(2)}: L40S-12Q, made by gpu-plugin, free",
        f"  {CARD.function(3)}: L40S-12Q, made by others, free",
        "  one more can be: L40S-12Q",
    ]


def test_who_uses_a_part_of_a_card_is_shown(tmp_path: Path) -> None:
    older, function = (
        Card(bus=0x81, id="10de:1eb8", possible=0, memory=16, mdevs={"nvidia-23": ("GRID T4-8Q", 8)}),
        b60(),
    )
    node = Node(tmp_path, older, function)
    node.wants(VGPURule(vendor="10de", types={"T4-8Q": 2}), VGPURule(vendor="8086", functions=2))
    node.apply()
    used, free = node.types(older)
    node.guests[used] = node.guests[function.function(1)] = "qemu-system-x86 (pid 812)"
    assert [*lines(node.survey())] == [
        "0000:03:00.0: on xe, 2 of 8 virtual functions, made by gpu-plugin, 1 in use",
        "0000:81:00.0: on nvidia",
        f"  {used}: T4-8Q, made by gpu-plugin, in use by qemu-system-x86 (pid 812)",
        f"  {free}: T4-8Q, made by gpu-plugin, free",
        "  one more can be: none",
    ]


def test_for_programs_there_is_also_what_would_be_done_and_what_could_not(program: Program, kubelet: Kubelet) -> None:
    program.node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1}))
    program.node.apply()
    used = CARD.function(1)
    kubelet.give("default/vm", "nvidia.com/L40S-24Q", [used])
    rules = [{"device": "10de:26b9", "types": {"L40S-12Q": 1}}]
    shown, error, code = program("--json", "--pod-resources", str(kubelet.pod_resources), vgpus=rules)
    assert (error, code) == ("", 0)
    wrong = "is of type L40S-24Q, for which the config has no place, and is in use by pod default/vm"
    assert json.loads(shown) == {
        "cards": [
            {
                "address": "0000:41:00.0",
                "driver": "nvidia",
                "functions": 8,
                "possibleFunctions": 8,
                "vgpus": [{"where": used, "type": "L40S-24Q", "ours": True, "user": "pod default/vm"}],
                "oneMore": ["L40S-24Q"],
                "changes": ["make a vGPU of type L40S-12Q"],
            }
        ],
        "findings": [{"severity": "error", "subject": used, "wrong": wrong, "fix": "apply again when that has ended"}],
    }
    for words in (("apply",), ("--dry-run",)):
        _, error, code = program("--json", *words)
        assert ("leave out apply and --dry-run" in error, code) == (True, 2)


def test_a_node_without_such_cards_says_so(gpu_plugin: Command, machine: Machine) -> None:
    assert gpu_plugin("vgpus", "--sysfs", machine("rtx-2060")).stdout == "This node has no card that can be cut.\n"


def test_who_has_what_is_asked_of_the_kubelet_which_has_to_answer(program: Program, kubelet: Kubelet) -> None:
    program.node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1}))
    program.node.apply()
    kubelet.give("default/vm", "nvidia.com/L40S-24Q", [CARD.function(1)])
    _, error, code = program("apply", "--undo", "--pod-resources", str(kubelet.pod_resources))
    assert (
        f"{CARD.function(1)}: is of type L40S-24Q, for which the config has no place, and is in use by pod def" in error
    )
    assert (code, len(program.node.types(CARD))) == (1, 1)
    kubelet.stop()
    assert (
        "pod-resources/kubelet.sock: " in program("apply", "--undo", "--pod-resources", str(kubelet.pod_resources))[1]
    )
    assert len(program.node.types(CARD)) == 1


def test_nobody_is_told_to_end_a_pod_whose_number_may_be_anything(program: Program, kubelet: Kubelet) -> None:
    program.node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1}))
    program.node.apply()
    function = program.node.sys / "bus/pci/devices" / CARD.function(1)
    kubelet.tells_ids = False
    kubelet.give("ml/training-0", "rdma/hca", [(function / "iommu_group").readlink().name])
    _, error, code = program("apply", "--undo", "--pod-resources", str(kubelet.pod_resources))
    assert error.endswith("is in use by pod ml/training-0, perhaps; apply again when that has ended\n")
    assert (code, len(program.node.types(CARD))) == (1, 1)


def test_a_vgpu_of_a_claim_stays_and_without_the_drivers_directory_nothing_is_done(program: Program) -> None:
    program.node.wants(VGPURule(device="10de:26b9", types={"L40S-24Q": 1}))
    program.node.apply()
    program.node.claim(CARD.function(1))
    directory = Path(program.dra_state[1])
    _, error, code = program("apply", "--undo")
    assert "and is in use by ResourceClaim default/" in error
    for place, says in (
        ((), "is there without --dra-state: a vGPU of a claim would be taken away; name where the DRA driver"),
        (("--dra-state", directory / "typo"), "typo: is no directory; name one that is there, or leave it out"),
    ):
        program.dra_state = place
        _, error, code = program("apply", "--undo")
        assert says in error
        assert code == 2
    assert len(program.node.types(CARD)) == 1
    program.dra_state = ()
    assert program("--dry-run")[2] == 0, "a dry run takes nothing away"


def test_a_script_that_is_not_there_or_fails_is_named(program: Program, tmp_path: Path) -> None:
    _, error, code = program("apply", "--sriov-manage", "/nowhere")
    assert "/nowhere -e 0000:41:00.0: cannot be run: No such file or directory, and the card is as it was" in error
    assert code == 1
    script = tmp_path / "sriov-manage"
    script.write_text("#!/bin/sh\necho Cannot obtain unbindLock >&2; exit 3\n")
    script.chmod(0o755)
    with pytest.raises(Failed, match="ends with 3: Cannot obtain unbindLock"):
        call({"sriov-manage": [str(script)]}, "sriov-manage", "-e", CARD.address)


def test_who_uses_a_card_has_to_be_seen(program: Program) -> None:
    program.node.on(CARD)
    (program.node.proc / "1/ns").mkdir(parents=True)
    (program.node.proc / "1/ns/pid").symlink_to("pid:[4026532999]")
    _, error, code = program("apply")
    assert error.startswith("gpu-plugin: who uses the cards: cannot be seen: ")
    assert (code, program.node.types(CARD)) == (1, {})


def test_a_quota_that_is_not_there_is_named(tmp_path: Path, gpu_plugin: Command) -> None:
    program = Program(tmp_path, gpu_plugin, b60(driver="i915"))
    _, error, code = program("apply", vgpus=[{"vendor": "8086", "functions": 1, "quota": {"vram_quota": 1 << 30}}])
    assert (
        "sriov_admin/vf1/profile/vram_quota: is not there, and the card is as it was before; leave the quota" in error
    )
    assert code == 1


def test_another_one_at_work_keeps_it_out(program: Program) -> None:

    with (program.node.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another bind or unbind is at work" in program("apply")[1]
