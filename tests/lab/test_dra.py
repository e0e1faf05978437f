"""The cards by Dynamic Resource Allocation: the driver publishes them, the stock scheduler chooses as the VM's
annotations say and as `gpu-launcher fit` foretells, the driver prepares what the claim names, and takes it back.

Three cards can go: ALONE, FAR and BOARD, which has two IOMMU groups; the two behind the switch share one. At the end a
fourth one, of which the driver makes vGPUs for claims.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pci.device_metadata import IN_CONTAINER, documents
from pci.slices import UNHEALTHY
from tests.lab import board, build, pods
from tests.lab.lab import Lab
from tests.lab.machine import ALONE, BOARD, CARD, FAR, MODERN, NVME
from tests.lab.restricted import check_restricted
from tests.lab.waiting import CommandFailed

MACHINE = replace(MODERN, vgpus=True, board=True)

VGPU = "10de:26b9"
CONFIG: dict[str, Any] = {
    **pods.CARDS,
    "serve": "dra",
    "offer": [*pods.CARDS["offer"], board.OFFER, {"device": VGPU, "withhold": True}],
}
CHECKPOINT = "/var/lib/kubelet/plugins/gpu-launcher.dev/checkpoint.json"
CDI = "/var/run/cdi"
CLAIM_SAYS = "a writable claim"
HAS_TAINTS = HAS_COUNTERS = build.kubernetes_minor() >= 36
#: A card and the board, a disk and networks, for `more`.
MORE = pods.merged(
    {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": pods.RESOURCE}, board.ENTRY]}}},
    pods.DISK_AND_NETWORKS,
)
#: vGPUs that the card at NVME can have at once, and their numbers at its driver; and which functions they are made of.
VGPUS, NUMBERS = {"L40S-24Q": 2, "L40S-48Q": 1}, {"L40S-24Q": "1155", "L40S-48Q": "1156"}
FUNCTIONS = (f"{NVME}.1", f"{NVME}.2")
WHEN_CLAIMED: dict[str, Any] = {
    **CONFIG,
    "bind": "when-claimed",
    "vgpus": [{"device": VGPU, "types": VGPUS, "when": "claimed"}],
    "offer": [
        *pods.CARDS["offer"],
        *({"vgpu_type": f"NVIDIA {its}", "resource": f"example.com/{its}"} for its in VGPUS),
    ],
}


def _name(slot: str) -> str:
    """A card's name in the slices."""
    return f"pci-{slot.replace(':', '-')}-0"


ON_BOARD = _name(BOARD[0].removesuffix(".0"))


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    return lab.start_plugin(CONFIG, base="dra")


@pytest.fixture(scope="module")
def uuids(lab: Lab, plugin: str) -> dict[str, str]:
    """The UUID of each card, by slot, once the API server has them all."""
    by_name = lab.until("the node's cards are published", lab.published, 150)
    return {slot: by_name[_name(slot)]["attributes"]["uuid"]["string"] for slot in (ALONE, FAR)}


@pytest.fixture(scope="module")
def vm(lab: Lab, uuids: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A VM with the board and another card, which is not to be ALONE's, by the UUID, with a disk and two networks, in a
    namespace that enforces the Pod Security level restricted: its log, once it runs. The runtime gives nobody device
    nodes but those of CDI."""
    lab.install_multus()
    lab.prepare_runtime(gives_devices=False)
    lab.make_claim("data", CLAIM_SAYS)
    annotations = {"nvidia.com/nouse-gpuuuid": uuids[ALONE]}
    foretold = _fit(lab, tmp_path_factory.mktemp("fit"), "chosen", 1, annotations)
    assert [entry["address"] for entry in foretold["nodes"][0]["takes"]] == [f"{FAR}.0"]
    with lab.vm("chosen", 1, dra=True, annotations=annotations, level="restricted", more=MORE) as log:
        yield log


def test_the_cards_that_can_go_are_published_with_what_is_known_of_them(
    lab: Lab, plugin: str, uuids: dict[str, str]
) -> None:
    published = lab.published()
    assert {*published} == {_name(ALONE), _name(FAR), ON_BOARD}
    assert not any("taints" in device for device in published.values())
    attributes = published[_name(FAR)]["attributes"]
    assert attributes["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert attributes["functions"] == {"int": 2}
    assert "resource.kubernetes.io/numaNode" not in published[_name(ALONE)]["attributes"]
    assert published[ON_BOARD]["attributes"]["functions"] == {"int": 2}


def test_a_plugins_token_writes_slices_of_its_own_node_and_pool_alone(lab: Lab, plugin: str) -> None:
    (own, *_) = lab.cluster.get_all("resourceslices")
    node = lab.node.name
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={plugin}")
    token = lab.cluster.kubectl("create", "token", "gpu-plugin", *bound).strip()

    def write(**spec: Any) -> str:
        forged = {**own, "metadata": {"name": "forged"}, "spec": {**own["spec"], **spec}}
        return lab.cluster.kubectl(
            "create", "--dry-run=server", "-f", "-", f"--token={token}", stdin=json.dumps(forged)
        )

    assert "forged created" in write()
    with pytest.raises(CommandFailed, match=f"gpu-plugin of node {node} may write slices of that node alone"):
        write(nodeName="another")
    with pytest.raises(CommandFailed, match=f"gpu-plugin of node {node} may write the pool of that name alone"):
        write(pool={"name": "another", "generation": 1000, "resourceSliceCount": 1})


def test_the_vm_has_the_card_that_was_foretold_and_its_companion(lab: Lab, vm: str) -> None:
    assert {*lab.allocated("chosen")} == {_name(FAR), ON_BOARD}
    assert f"host {FAR}.0 -> guest 0000:01:00.0" in vm
    functions = lab.console("chosen").functions()
    assert (functions["0000:01:00.0"], functions["0000:01:00.1"]) == CARD


def test_the_vm_has_both_functions_of_the_card_that_has_two_groups(lab: Lab, vm: str) -> None:
    board.check_board(lab, "chosen", lab.console("chosen"))


def test_it_is_a_user_without_a_capability_from_its_first_instruction(lab: Lab, vm: str) -> None:
    check_restricted(lab, "chosen")
    said = lab.console("chosen").wait_for("GUEST end")
    assert f"GUEST disk vda says {CLAIM_SAYS}" in said
    one, other = re.findall(r"GUEST address (\S+)", said)
    assert other.startswith(pods.SECOND_ADDRESSES)
    assert not one.startswith(pods.SECOND_ADDRESSES)


def test_a_card_that_is_taken_is_waited_for_and_fit_says_who_has_it(
    lab: Lab, vm: str, uuids: dict[str, str], tmp_path: Path
) -> None:
    """By a VM that wants that one, and by one that wants two."""
    with lab.pod("second", 1, dra=True, annotations={"nvidia.com/use-gpuuuid": uuids[FAR]}):
        assert "cannot allocate all claims" in lab.unschedulable("second")
    found = _fit(lab, tmp_path, "second", 1, {"nvidia.com/use-gpuuuid": uuids[FAR]})
    reasons = {card["address"]: card["reason"] for card in found["nodes"][0]["cards"]}
    assert not found["fits"]
    assert reasons[f"{FAR}.0"].startswith("taken by claim default/chosen-")
    assert reasons[f"{FAR}.0"].endswith("of pod chosen")
    assert reasons[f"{ALONE}.0"].startswith("excluded by nvidia.com/use-gpuuuid")


def test_two_that_race_for_one_card_do_not_both_get_it(lab: Lab, vm: str, uuids: dict[str, str]) -> None:
    wish = {"nvidia.com/use-gpuuuid": uuids[ALONE]}
    # The node has memory for two VMs, and it is the card that they are to race for.
    little = {"domain": {"resources": {"overcommitGuestOverhead": True}}}
    one, other = (
        lab.pod(name, 1, dra=True, annotations=wish, more=little, sleeps=True, grace=1)
        for name in ("racing-one", "racing-two")
    )
    with one, other:

        def winners() -> list[str]:
            return [pod for pod in ("racing-one", "racing-two") if lab.allocated(pod)]

        (winner,) = lab.until("one of them has the card", winners, 60)
        loser = "racing-two" if winner == "racing-one" else "racing-one"
        assert "cannot allocate all claims" in lab.unschedulable(loser)
        assert winners() == [winner]


def test_two_cards_of_one_numa_node_are_not_to_be_had_and_fit_says_so(
    lab: Lab, vm: str, plugin: str, tmp_path: Path
) -> None:
    wish = {"nvidia.com/numa-bind": "true"}
    with lab.pod("bound", 2, dra=True, annotations=wish):
        assert "cannot allocate all claims" in lab.unschedulable("bound")
    found = _fit(lab, tmp_path, "bound", 2, wish)
    assert (found["fits"], bool(found["nodes"][0]["reason"])) == (False, True)


@pytest.mark.skipif(not HAS_TAINTS, reason="Kubernetes has taints of devices from 1.36 on")
def test_a_card_that_is_not_whole_is_tainted_until_it_is(lab: Lab, vm: str) -> None:
    taints = [(UNHEALTHY, "is-not-whole-0000-01-00.1-audio-is-bound-to-no-driver")]
    with _not_whole(lab):
        # Before that, it has lost a device node.
        lab.until("the card is tainted", lambda: _taints(lab, ALONE) == taints, 60)


@pytest.mark.skipif(HAS_TAINTS, reason="only Kubernetes before 1.36 has no taints of devices")
def test_a_card_that_is_not_whole_is_left_out_until_it_is(lab: Lab, vm: str) -> None:
    with _not_whole(lab):
        lab.until("the card is left out", lambda: _name(ALONE) not in lab.published(), 60)


@pytest.mark.thorough
def test_the_vm_lives_on_while_plugin_and_kubelet_start_again(lab: Lab, vm: str, plugin: str) -> None:
    lab.cluster.delete("pod", plugin)
    lab.kill_kubelet()
    lab.plugin()
    assert prepared(lab)
    assert lab.cluster.kubectl("exec", "chosen", "--", "gpu-launcher", "ctl", "state").startswith(
        "default/chosen: running"
    )
    assert {*lab.allocated("chosen")} == {_name(FAR), ON_BOARD}


def test_what_its_claim_had_is_free_when_the_vm_has_ended(
    lab: Lab, vm: str, uuids: dict[str, str], tmp_path: Path
) -> None:
    lab.cluster.delete("pod", "chosen")
    lab.until("nothing is prepared", lambda: not prepared(lab), 60)
    assert "gpu-launcher" not in lab.node.sh(f"ls {CDI}")
    lab.until("its claim is gone", lambda: "chosen" not in lab.cluster.kubectl("get", "resourceclaims"), 60)
    found = _fit(lab, tmp_path, "next", 1, {"nvidia.com/use-gpuuuid": uuids[FAR]})
    assert [entry["address"] for entry in found["nodes"][0]["takes"]] == [f"{FAR}.0"]


@pytest.mark.thorough
def test_a_boot_ends_what_was_prepared_and_the_cards_are_published_again(
    lab: Lab, plugin: str, uuids: dict[str, str]
) -> None:
    wish = {"nvidia.com/use-gpuuuid": uuids[ALONE]}
    with lab.holder("before", 1, dra=True, annotations=wish):
        assert prepared(lab)
        lab.node.reboot(MACHINE)
        lab.wait_for_end("before")
    lab.plugin()
    lab.until("ALONE is well", lambda: _is_well(lab, ALONE), 150)
    lab.until("nothing is prepared", lambda: not prepared(lab), 60)
    with lab.holder("after", 1, dra=True, annotations=wish):
        assert lab.allocated("after") == [_name(ALONE)]


@pytest.fixture(scope="module")
def when_claimed(lab: Lab, uuids: dict[str, str]) -> None:
    """A plugin that finds no card bound, binds them for claims, and makes vGPUs for claims."""
    state = CHECKPOINT.rpartition("/")[0]
    code, said = lab.bind("unbind", "--all", f"--config={pods.CONFIG}", f"--dra-state={state}")
    assert code == 0, said
    lab.start_plugin(WHEN_CLAIMED, base="dra")
    # Until then the one before it may be asked, which has no rights to make a vGPU.
    lab.cluster.kubectl("rollout", "status", "daemonset/gpu-plugin", "--timeout=0", seconds=220)


def test_bound_when_claimed_there_and_back(lab: Lab, when_claimed: None, uuids: dict[str, str], tmp_path: Path) -> None:
    """A card is as its host has it until a claim has it, and again afterwards."""
    own = lab.drivers(ALONE)
    assert "vfio-pci" not in own
    lab.until("ALONE is on offer as it is", lambda: _is_well(lab, ALONE) and not _is_bound(lab, ALONE), 150)
    wish = {"nvidia.com/use-gpuuuid": uuids[ALONE]}
    foretold = _fit(lab, tmp_path, "claimed", 1, wish)
    assert [entry["address"] for entry in foretold["nodes"][0]["takes"]] == [f"{ALONE}.0"]
    with lab.holder("claimed", 1, dra=True, annotations=wish):
        assert lab.allocated("claimed") == [_name(ALONE)]
        assert lab.drivers(ALONE) == ["vfio-pci", "vfio-pci"]
        assert "vfio-pci" not in lab.drivers(FAR)
    lab.until("the host has it again", lambda: lab.drivers(ALONE) == own, 150)
    lab.until("nothing is prepared", lambda: not prepared(lab), 60)


@pytest.mark.skipif(not HAS_COUNTERS, reason="Kubernetes has counters of devices from 1.36 on")
def test_a_device_for_each_type_and_number_of_vgpus_is_published_with_counters(lab: Lab, when_claimed: None) -> None:
    names = {_vgpu_name(its, number) for its, count in VGPUS.items() for number in range(count)}
    lab.until("the vGPUs are published", lambda: names <= {*lab.published()}, 150)
    slices = [each["spec"] for each in lab.cluster.get_all("resourceslices")]
    left = {
        (counters["name"], name): int(counter["value"])
        for spec in slices
        for counters in spec.get("sharedCounters", ())
        for name, counter in counters["counters"].items()
    }
    consumed = {name: _consumed(lab.published()[name]) for name in names}
    one, other, whole = (consumed[_vgpu_name(*which)] for which in (("L40S-24Q", 0), ("L40S-24Q", 1), ("L40S-48Q", 0)))
    assert _fits(left, one, other)
    assert _fits(left, whole)
    assert not _fits(left, one, whole)
    assert made(lab) == dict.fromkeys(FUNCTIONS, "0")


@pytest.mark.skipif(not HAS_COUNTERS, reason="Kubernetes has counters of devices from 1.36 on")
def test_vgpus_are_made_for_guests_and_another_size_waits_until_the_last_of_them_has_ended(
    lab: Lab, when_claimed: None
) -> None:
    """They stay when the pod of the driver that made them is deleted, and the next driver takes each away with its
    claim. One pod has its vGPU and sleeps, and QEMU opens the other's for a guest that is not to boot: a Linux with a
    vGPU is test_mission.py's."""
    half, whole = ({"dra": True, "more": wish_for(its)} for its in ("L40S-24Q", "L40S-48Q"))
    paused = {"dra": True, "more": {**wish_for("L40S-24Q"), "startStrategy": "Paused"}}
    with (
        lab.holder("half", 0, **half),
        lab.vm("other-half", 0, grace=1, **paused),
        lab.pod("whole", 0, grace=1, sleeps=True, **whole),
    ):
        first, last = (_vgpu(lab, name) for name in ("half", "other-half"))
        assert {first, last} == {*FUNCTIONS}
        assert made(lab) == dict.fromkeys(FUNCTIONS, NUMBERS["L40S-24Q"])
        assert "cannot allocate all claims" in lab.unschedulable("whole")
        lab.wait_for_log("other-half", f"host {last} -> guest 0000:01:00.0")
        lab.cluster.delete("pod", lab.plugin())
        assert made(lab) == dict.fromkeys(FUNCTIONS, NUMBERS["L40S-24Q"])
        lab.plugin()
        assert made(lab) == dict.fromkeys(FUNCTIONS, NUMBERS["L40S-24Q"])
        lab.cluster.delete("pod", "half")
        lab.until("a vGPU went with its claim", lambda: made(lab)[first] == "0", 60)
        assert made(lab)[last] == NUMBERS["L40S-24Q"]
        assert not lab.allocated("whole")
        lab.cluster.delete("pod", "other-half")
        lab.until("the one that waited runs", lambda: lab.phase("whole") == "Running", 150)
        assert made(lab) == {**dict.fromkeys(FUNCTIONS, "0"), _vgpu(lab, "whole"): NUMBERS["L40S-48Q"]}
    lab.until("nothing is prepared", lambda: not prepared(lab), 60)
    assert made(lab) == dict.fromkeys(FUNCTIONS, "0")


@contextmanager
def _not_whole(lab: Lab) -> Iterator[None]:
    """A card that nobody has is not whole in the block, and well again after it. An unbind from a device that a guest
    has open would wait for the guest."""
    lab.node.sh(f"echo {ALONE}.1 > /sys/bus/pci/drivers/vfio-pci/unbind")
    try:
        yield
    finally:
        lab.node.sh(f"echo {ALONE}.1 > /sys/bus/pci/drivers_probe")
    lab.until("the card is well", lambda: _is_well(lab, ALONE), 60)


def prepared(lab: Lab) -> dict[str, Any]:
    """What the driver has written down as prepared, by the claim's UID. What another boot wrote is prepared no more."""
    checkpoint = json.loads(lab.node.sh(f"cat {CHECKPOINT}"))
    boot = lab.node.sh("cat /proc/sys/kernel/random/boot_id").strip()
    claims: dict[str, Any] = checkpoint["claims"] if checkpoint["boot"] == boot else {}
    return claims


def _is_well(lab: Lab, slot: str) -> bool:
    device = lab.published().get(_name(slot))
    return device is not None and "taints" not in device


def _is_bound(lab: Lab, slot: str) -> bool:
    """By what is published of it."""
    attributes = lab.published().get(_name(slot), {}).get("attributes", {})
    return bool(attributes.get("driver") == {"string": "vfio-pci"})


def _taints(lab: Lab, slot: str) -> list[tuple[str, str]]:
    return [(taint["key"], taint["value"]) for taint in lab.published()[_name(slot)].get("taints", [])]


def _fit(lab: Lab, directory: Path, name: str, cards: int, annotations: dict[str, str]) -> dict[str, Any]:
    return lab.fit(directory, pods.manifest(name, cards, annotations=annotations))


def _vgpu_name(its: str, number: int) -> str:
    """A vGPU's name in the slices, by its type and number."""
    return f"vgpu-{NVME.replace(':', '-')}-0-{its.lower()}-{number}"


def wish_for(its: str) -> dict[str, Any]:
    """A VM with one vGPU of this type, for whose memory there is room beside another two."""
    devices = {"gpus": [{"name": "vgpu", "deviceName": f"example.com/{its}"}]}
    return {"domain": {"devices": devices, "resources": {"overcommitGuestOverhead": True}}}


def made(lab: Lab) -> dict[str, str]:
    """The type's number of each function, by its driver; 0 for none."""
    shown = "cd /sys/bus/pci/devices; grep . */nvidia/current_vgpu_type"
    return dict(re.findall(r"(\S+?)/nvidia/current_vgpu_type:(\d+)", lab.node.sh(shown)))


def _vgpu(lab: Lab, pod: str) -> str:
    """The address of the vGPU that it has been given, by the file that tells it."""
    told = lab.cluster.kubectl("exec", pod, "--", "sh", "-c", f"cat {IN_CONTAINER}/*/*/*/*")
    (request,) = next(documents(told))["requests"]
    (device,) = request["devices"]
    return str(device["attributes"]["resource.kubernetes.io/pciBusID"]["string"])


def _consumed(device: dict[str, Any]) -> dict[tuple[str, str], int]:
    """How much of which counter a device in the slices consumes, by the counter's set and name."""
    return {
        (each["counterSet"], name): int(counter["value"])
        for each in device["consumesCounters"]
        for name, counter in each["counters"].items()
    }


def _fits(left: dict[tuple[str, str], int], *devices: dict[tuple[str, str], int]) -> bool:
    """Whether the devices consume no more than is left of each counter."""
    return all(sum(device.get(counter, 0) for device in devices) <= most for counter, most in left.items())
