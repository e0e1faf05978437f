"""What a rule of the config wants of a card's reset and power: written with its binding, and undone with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from pci.sysfs.functions import read_host
from plugin.cards.config import Config, DeadlyResets, Rule
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCIIDs
from plugin.changes.journal import JournalFile
from program.errors import Nonsense, Refusal
from tests.faults import refuses
from tests.kernel import Sysfs, becomes, bind
from tests.plugin.kinds.bound import DAILY, GPU, Node, lines, rtx
from tests.snapshots import snapshot_of

DEVICES = "/sys/bus/pci/devices"


def wants(reset_method: str | tuple[str, ...] | None = None, d3cold_allowed: bool | None = None) -> Config:
    rule = Rule(device="10de:1f08", resource="nvidia.com/gpu", reset_method=reset_method, d3cold_allowed=d3cold_allowed)
    return Config(offer=(rule,))


NO_RESET = wants(reset_method=())
NO_D3COLD = wants(d3cold_allowed=False)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A desktop with one card of four functions, whose GPU lists a reset of the bus that it cannot have."""
    node = Node(tmp_path, rtx())
    for number in range(4):
        node.write(f"0000:01:00.{number}", "reset_method", "flr bus" if number == 0 else "pm")
        node.write(f"0000:01:00.{number}", "d3cold_allowed", "1")
    return node


def held(node: Node, name: str) -> list[str]:
    """The lines of this file of all functions, the first one first."""
    return [(node.sys / f"bus/pci/devices/0000:01:00.{number}" / name).read_text().strip() for number in range(4)]


def test_the_reset_of_the_gpu_is_chosen_before_vfio_gets_it(node: Node) -> None:
    assert lines(node.to_bind(GPU, config=NO_RESET))[-4:] == (
        f"echo > {DEVICES}/{GPU}/reset_method",
        f"echo vfio-pci > {DEVICES}/{GPU}/driver_override",
        f"echo {GPU} > {DEVICES}/{GPU}/driver/unbind",
        f"echo {GPU} > /sys/bus/pci/drivers_probe",
    )
    node.carry_out(node.to_bind(GPU, config=NO_RESET))
    assert held(node, "reset_method") == ["", "pm", "pm", "pm"]


def test_every_function_keeps_its_power(node: Node) -> None:
    node.carry_out(node.to_bind(GPU, config=NO_D3COLD))
    assert held(node, "d3cold_allowed") == ["0"] * 4


def test_unbind_undoes_it_once_the_cards_own_driver_has_it(node: Node) -> None:
    node.carry_out(node.to_bind(GPU, config=wants((), False)))
    undone = node.to_unbind(GPU)
    assert [line.replace(f"{DEVICES}/{GPU}", "GPU") for line in lines(undone)[:7]] == [
        "echo nouveau > GPU/driver_override",
        f"echo {GPU} > GPU/driver/unbind",
        f"echo {GPU} > /sys/bus/pci/drivers_probe",
        "echo > GPU/driver_override",
        "echo 1 > GPU/d3cold_allowed",
        "echo flr > GPU/reset_method",
        "echo snd_hda_intel > /sys/bus/pci/devices/0000:01:00.1/driver_override",
    ]
    node.carry_out(undone)
    assert node.drivers() == [*DAILY]
    # The kernel has no `bus` for one of several functions of a bus, and does not take it back.
    assert held(node, "reset_method") == ["flr", "pm", "pm", "pm"]
    assert held(node, "d3cold_allowed") == ["1"] * 4
    assert node.remembered() == {}


def test_what_is_as_wanted_is_not_written(node: Node) -> None:
    node.write(GPU, "reset_method", "")
    node.write(GPU, "d3cold_allowed", "0")
    plan = node.to_bind(GPU, config=wants((), False))
    assert [setting for move in plan.moves if str(move.address) == GPU for setting in move.settings] == []


def test_a_kernel_that_refuses_leaves_everything_as_it_was(node: Node) -> None:
    kernel = Sysfs(node.sys, dict(zip((f"0000:01:00.{number}" for number in range(4)), DAILY, strict=True)))
    plan = node.to_bind(GPU, config=wants("pm", False))
    number = next(n for n, write in enumerate(lines(plan), start=1) if write.endswith(f"{GPU}/reset_method"))
    failing = Sysfs(node.sys, instead=refuses(number))
    with pytest.raises(Refusal, match="reset_method: Input/output error, and everything is as it was before"):
        node.carry_out(plan, failing)
    assert held(node, "d3cold_allowed") == ["1"] * 4
    assert node.drivers() == [*DAILY]
    assert node.remembered() == {}
    node.carry_out(node.to_bind(GPU, config=NO_D3COLD), kernel)
    assert node.drivers() == ["vfio-pci"] * 4


def test_what_a_killed_bind_has_changed_is_given_back_all_the_same(node: Node) -> None:
    node.carry_out(node.to_bind(GPU, config=NO_D3COLD))
    # As if it had been killed before vfio had the GPU.
    bind(node.sys, GPU, "nouveau")
    node.write(GPU, "driver_override", "(null)")
    node.carry_out(node.to_bind(GPU, config=NO_D3COLD))
    node.carry_out(node.to_unbind(GPU))
    assert held(node, "d3cold_allowed") == ["1"] * 4


def test_another_card_in_the_slot_does_not_get_the_former_ones_settings(node: Node) -> None:
    node.carry_out(node.to_bind(GPU, config=NO_D3COLD))
    file = JournalFile(node.roots.state, "")
    former = {address: replace(each, id="10de:2204") for address, each in file.read().former.items()}
    file.write(replace(file.read(), former=former))
    assert [setting for move in node.to_unbind(GPU).moves for setting in move.settings] == []


def test_the_kernel_has_no_bus_reset_for_one_of_several_functions(node: Node) -> None:
    with pytest.raises(Refusal, match=r"shares its bus with 0000:01:00\.1, .*; reset_method: \[\] has VFIO reset"):
        node.to_bind(GPU, config=wants("bus"))


def test_a_function_without_resets_has_none_to_choose(node: Node) -> None:
    (node.sys / f"bus/pci/devices/{GPU}/reset_method").unlink()
    with pytest.raises(Refusal, match="it has no reset of its own to choose by reset_method"):
        node.to_bind(GPU, config=wants("flr"))
    assert node.to_bind(GPU, config=NO_RESET).moves


def test_a_rule_that_avoids_the_deadly_reset_has_the_card_offered(node: Node, pci_ids: PCIIDs) -> None:
    becomes(node.sys, GPU, "10de:2b85")
    for number in range(4):
        bind(node.sys, f"0000:01:00.{number}", "vfio-pci")

    def reason() -> str:
        rule = Rule(device="10de:2b85", resource="nvidia.com/gpu", reset_method=())
        config = Config(offer=(rule,), deadly_resets=DeadlyResets.WITHHOLD)
        inventory = take_inventory(read_host(node.sys), config, pci_ids)
        return str(snapshot_of(node.sys, pci_ids, config).reason(inventory.by_id[GPU]))

    # Vfio had it before, so that the rule is not in force.
    assert "GB202" in reason()
    node.write(GPU, "reset_method", "")
    assert reason() == "None"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"reset_method": "slot"}, "found reset_method 'slot'; expected any of device_specific, acpi, flr"),
        ({"d3cold_allowed": False, "withhold": True, "resource": None}, "beside withhold; what is withheld"),
        ({"reset_method": (), "vgpu_type": "L40S-1B"}, "beside mdev_type or vgpu_type; leave them out"),
    ],
)
def test_nonsense_is_refused(rule: dict[str, object], says: str) -> None:
    with pytest.raises(Nonsense) as refused:
        Rule(**{"device": "10de:1f08", "resource": "nvidia.com/gpu", **rule})  # type: ignore[arg-type]
    assert says in f"{refused.value.wrong}; {refused.value.fix}"


@pytest.mark.parametrize("words", ["flr bus", ("flr", "bus")])
def test_resets_are_a_list_or_written_as_the_kernel_writes_them(words: str | tuple[str, ...]) -> None:
    assert wants(words).offer[0].reset_method == ("flr", "bus")
