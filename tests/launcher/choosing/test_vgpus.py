"""VMs that want vGPUs which are made when they are claimed, and which exclude each other on their card."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import fit_of
from launcher.choosing.map import CardState, cards_of
from launcher.vm.cards.annotations import read_selection
from launcher.vm.cards.claims import Entry, EntryKind
from plugin.cards.config import Config, Serve
from plugin.cards.names import read_pci_ids
from plugin.cards.vgpu_rules import VGPURule, When
from program.errors import UserError
from tests.clusters import Object, claim_of, slices_of
from tests.processes import FIXTURES
from tests.snapshots import look_at
from tests.vgpu_kernel import Kernel, l40s

TYPES = {"L40S-12Q": 4, "L40S-24Q": 2, "L40S-48Q": 1}
NO_ROOM = "its card has no room left for it"
UUIDS = {bus: f"GPU-8dcd427f-b4c5-4b2a-9f10-0000000000{bus}" for bus in ("41", "61")}


@pytest.fixture
def objects(tmp_path: Path) -> list[Object]:
    """The slices of a node with two L40S, nothing made yet."""
    cards = l40s(0x41), l40s(0x61)
    kernel = Kernel(tmp_path, *cards)
    for card in cards:
        kernel.on(card)
        told = kernel.proc / "driver/nvidia/gpus" / card.address
        told.mkdir(parents=True)
        (told / "information").write_text(f"Model: \t\t NVIDIA L40S\nGPU UUID: \t {UUIDS[f'{card.bus:02x}']}\n")
    rule = VGPURule(vendor="10de", types=TYPES, when=When.CLAIMED)
    names, config = read_pci_ids(FIXTURES / "pci.ids"), Config(serve=Serve.DRA, vgpus=(rule,))
    return slices_of(look_at(kernel.sys, names, config, state=kernel.state, proc=kernel.proc), "node")


def name_of(bus: str, size: str, number: int) -> str:
    return f"vgpu-0000-{bus}-00-0-l40s-{size.lower()}-{number}"


def fit(
    objects: Sequence[Object], *sizes: str, held: Sequence[str] = (), annotations: Mapping[str, str] = {}
) -> tuple[list[str] | str | None, Mapping[str, str | None]]:
    """The devices that a VM with vGPUs of these sizes and these annotations gets while others have those that are
    `held`, or why none; and why each device is not the VM's."""
    entries = [
        Entry(kind=EntryKind.GPU, name=f"g{number}", wants=f"nvidia.com/NVIDIA_L40S-{size}")
        for number, size in enumerate(sizes)
    ]
    cluster = cluster_of([*objects, claim_of("held", [("node", name) for name in held], "other")])
    (placement,) = fit_of("default/vm", "default", entries, read_selection(annotations), (), cluster).placements
    verdicts = {each.device.id.name: None if each.reason is None else each.reason.text for each in placement.verdicts}
    devices = placement.devices
    return (placement.reason if devices is None else [device.id.name for device in devices]), verdicts


def test_a_vgpu_of_another_size_than_the_cards_is_on_the_other_card(objects: list[Object]) -> None:
    devices, verdicts = fit(objects, "48Q", held=[name_of("41", "24Q", 0)])
    assert devices == [name_of("61", "48Q", 0)]
    assert verdicts[name_of("41", "48Q", 0)] == NO_ROOM
    assert fit(objects, "24Q", held=[name_of("41", "24Q", 0)])[0] == [name_of("41", "24Q", 1)]


def test_no_card_has_room_for_another_size(objects: list[Object]) -> None:
    held = [name_of("41", "24Q", 0), name_of("61", "12Q", 0)]
    assert fit(objects, "48Q", held=held)[0] == "no card here could be gpu 'g0'"


def test_the_vgpus_of_one_vm_have_room_together_or_are_refused(objects: list[Object]) -> None:
    assert fit(objects, "48Q", "24Q")[0] == [name_of("41", "48Q", 0), name_of("61", "24Q", 0)]
    assert fit(objects, "24Q", "24Q", "24Q")[0] == [name_of(*each) for each in _THREE_HALVES]
    said = "not 3 of the cards that could be had go together: they share room"
    assert fit(objects, "48Q", "24Q", "12Q")[0] == said
    # The first choice for g0 leaves no room for the second of g1 and g2.
    assert fit(objects, "24Q", "48Q", "24Q")[0] == [
        name_of("41", "24Q", 0),
        name_of("61", "48Q", 0),
        name_of("41", "24Q", 1),
    ]


def test_where_the_numa_node_of_no_card_is_known_that_is_said_and_not_that_they_share_room(
    objects: list[Object],
) -> None:
    for each in (device for part in objects for device in part["spec"].get("devices", ())):
        each["attributes"].pop("resource.kubernetes.io/numaNode", None)
    assert fit(objects, "24Q", "24Q", annotations={"nvidia.com/numa-bind": "true"})[0] == (
        "of no card here that could be had the NUMA node is known (nvidia.com/numa-bind 'true')"
    )


_THREE_HALVES = (("41", "24Q", 0), ("41", "24Q", 1), ("61", "24Q", 0))


@pytest.mark.parametrize("written", ["41", "61"])
def test_a_card_is_chosen_for_a_vgpu_by_the_uuid_that_nvml_has_for_it(objects: list[Object], written: str) -> None:
    other = {"41": "61", "61": "41"}[written]
    for uuid in (UUIDS[written], UUIDS[written].removeprefix("GPU-")):
        assert fit(objects, "48Q", annotations={"nvidia.com/use-gpuuuid": uuid})[0] == [name_of(written, "48Q", 0)]
        devices, verdicts = fit(objects, "48Q", annotations={"nvidia.com/nouse-gpuuuid": uuid})
        assert devices == [name_of(other, "48Q", 0)]
        said = f"excluded by nvidia.com/nouse-gpuuuid {uuid!r}: {UUIDS[written]}"
        assert verdicts[name_of(written, "48Q", 0)] == said


def test_the_map_says_where_no_room_is_left(objects: list[Object]) -> None:
    cluster = cluster_of([*objects, claim_of("held", [("node", name_of("41", "48Q", 0))], "other")])
    (node,) = cluster.nodes
    states = [(each.state, NO_ROOM in each.text) for each in cards_of(node, cluster)]
    free, taken, no_room = (CardState.FREE, False), (CardState.TAKEN, False), (CardState.UNAVAILABLE, True)
    assert [states.count(each) for each in (free, taken, no_room)] == [7, 1, 6]


@pytest.mark.parametrize("value", ["x", None, {"value": "1Zi"}], ids=repr)
def test_a_counter_that_is_none_is_named(objects: list[Object], value: object) -> None:
    (counters,) = [each for each in objects if each["spec"].get("sharedCounters")]
    its = counters["spec"]["sharedCounters"][0]["counters"]
    its[min(its)] = value
    with pytest.raises(UserError, match=f"^ResourceSlice {counters['metadata']['name']}: the counter {min(its)}: "):
        fit(objects, "48Q")
