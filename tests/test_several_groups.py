"""A card whose functions have IOMMU groups of their own, from the node to the guest: one device, one entry, all groups'
nodes. By the kubelet's protocol, by DRA, beside KubeVirt; and as it is bound and given back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pci.device_metadata import documents
from plugin.cards.config import Config, Rule
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment
from plugin.kinds.card import Setting
from plugin.pages.page import node_page
from plugin.pages.picture import picture
from program.errors import Refusal
from tests.compose import MACHINES
from tests.conftest import Command, Machine
from tests.kernel import bind, make_nodes, part, process
from tests.kubelet import Kubelet
from tests.launcher.hook.kubevirt import Card, Parts, domain
from tests.launcher.vms import vmi_text
from tests.listings import MACHINES as LISTINGS
from tests.listings import compose_listing
from tests.pictures import read_back, squeezed
from tests.plugin.daemon import serve, wait_until
from tests.plugin.dra.cluster import CONFIG, running_cluster
from tests.plugin.kinds.bound import Node, addresses
from tests.processes import FIXTURES
from tests.snapshots import snapshot_of

NAME = "cards-of-several-groups"
RADEON, ARC = "amd.com/NAVI_23_RADEON_RX_6600_6600_XT_6600M", "intel.com/DG2_ARC_A750"
#: By resource: the card's GPU, its audio, and the nodes of both groups.
CARDS = {
    RADEON: ("0000:03:00.0", "0000:03:00.1", ["/dev/vfio/vfio", "/dev/vfio/13", "/dev/vfio/14"]),
    ARC: ("0000:43:00.0", "0000:44:00.0", ["/dev/vfio/vfio", "/dev/vfio/24", "/dev/vfio/25"]),
}
#: Where a guest with that card alone has its audio.
IN_THE_GUEST = {RADEON: "0000:01:00.1", ARC: "0000:02:00.0"}
both_cards = pytest.mark.parametrize("resource", CARDS)


def only(dev: Path, nodes: list[str], container: Path) -> Path:
    """A container's /dev, with these nodes alone."""
    for node in nodes:
        path = container / node.removeprefix("/dev/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(dev / node.removeprefix("/dev/"))
    return container


def explained(gpu_launcher: Command, manifest: Path, sys: Path, env: Mapping[str, str]) -> list[dict[str, Any]]:
    flags = [f"--env={name}={value}" for name, value in env.items()]
    result = gpu_launcher("explain", manifest, "--json", "--sysfs", sys, *flags)
    assert result.returncode == 0, result.stderr
    entries: list[dict[str, Any]] = json.loads(result.stdout)["entries"]
    return entries


@both_cards
def test_what_a_real_kubelet_is_answered_is_what_explain_has_in_the_guest(
    resource: str, machine: Machine, kubelet: Kubelet, gpu_launcher: Command, tmp_path: Path
) -> None:
    gpu, audio, nodes = CARDS[resource]
    sys = machine(NAME)
    with serve(sys, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(resource) == (gpu,))
        answer = kubelet.allocate(resource, 1)
    assert list(answer.envs.values()) == [gpu]
    assert [node.container_path for node in answer.devices] == nodes
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(vmi_text(gpus=[("gpu1", resource)]))
    (entry,) = explained(gpu_launcher, manifest, sys, dict(answer.envs))
    assert [(each["host"], each["is"], each["guest"]) for each in entry["passed"]] == [
        (gpu, "GPU", "0000:01:00.0"),
        (audio, "audio", IN_THE_GUEST[resource]),
    ]
    assert "leftBehind" not in entry


@both_cards
def test_audio_that_leaves_vfio_does_not_take_the_gpu_along_and_all_say_what_stays(
    resource: str,
    copied_machine: Machine,
    kubelet: Kubelet,
    gpu_launcher: Command,
    gpu_plugin: Command,
    pci_ids: PCIIDs,
    tmp_path: Path,
) -> None:
    gpu, audio, nodes = CARDS[resource]
    sys = copied_machine(NAME)
    with serve(sys, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(resource) == (gpu,))
        bind(sys, audio, "snd_hda_intel")
        answer = kubelet.allocate_devices(resource, [gpu])
    assert [node.container_path for node in answer.devices] == nodes[:-1]
    wrong, fix = f"leaves {audio} (audio) behind: that is bound to snd_hda_intel", "bind the whole card to vfio-pci"
    words = f"{wrong}; {fix}"
    where = ("--sysfs", sys, "--pci-ids", FIXTURES / "pci.ids")
    assert f"{gpu} {words}" in gpu_plugin("inventory", *where).stdout.splitlines()
    devices = json.loads(gpu_plugin("inventory", "--json", *where).stdout)["devices"]
    (listed,) = (each for each in devices if each["id"] == gpu)
    assert listed["leftBehind"] == [{"subject": gpu, "wrong": wrong, "fix": fix}]
    doctor = json.loads(gpu_plugin("doctor", "--json", *where).stdout)
    (finding,) = (one for one in doctor["findings"] if one["check"] == "whole-card")
    assert (finding["device"], finding["severity"], finding["steps"]) == (gpu, "warning", [f"gpu-plugin bind {gpu}"])
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(vmi_text(gpus=[("gpu1", resource)]))
    (entry,) = explained(gpu_launcher, manifest, sys, dict(answer.envs))
    assert entry["leftBehind"] == [{"subject": "gpu 'gpu1'", "wrong": wrong, "fix": fix}]
    assert [each["host"] for each in entry["passed"]] == [gpu]
    assert f"It {words}." in node_page(snapshot_of(sys, pci_ids)).html


@both_cards
def test_all_show_the_groups_of_all_its_functions(
    resource: str, machine: Machine, gpu_plugin: Command, pci_ids: PCIIDs
) -> None:
    gpu, _, nodes = CARDS[resource]
    groups = ", ".join(node.removeprefix("/dev/vfio/") for node in nodes[1:])
    where = ("--sysfs", machine(NAME), "--pci-ids", FIXTURES / "pci.ids")
    (row,) = (line for line in gpu_plugin("inventory", *where).stdout.splitlines() if line.startswith(gpu))
    assert f" {groups} " in row
    assert f"group {groups}\n" in gpu_plugin("doctor", *where).stdout
    snapshot = snapshot_of(machine(NAME), pci_ids)
    assert f"IOMMU group {groups}" in node_page(snapshot).html
    # In the picture each part is where it is.
    assert squeezed(f"one device with {gpu}") in read_back(picture(snapshot)).words


@both_cards
def test_a_gpu_that_leaves_vfio_is_refused_whatever_has_its_audio(
    resource: str, copied_machine: Machine, kubelet: Kubelet
) -> None:
    gpu, _, _ = CARDS[resource]
    sys = copied_machine(NAME)
    with serve(sys, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(resource) == (gpu,))
        bind(sys, gpu, "amdgpu")
        with pytest.raises(grpc.RpcError):
            kubelet.allocate_devices(resource, [gpu])


@both_cards
def test_a_container_with_the_gpus_node_alone_gets_the_gpu_alone_and_check_says_so(
    resource: str, machine: Machine, gpu_launcher: Command, tmp_path: Path
) -> None:
    """As under another device plugin, or in a pod from before the update."""
    gpu, audio, nodes = CARDS[resource]
    sys, dev = machine(NAME), make_nodes(machine(NAME), tmp_path / "dev")
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(vmi_text(gpus=[("gpu1", resource)]))
    variable = f"PCI_RESOURCE_{resource.upper().replace('/', '_').replace('.', '_')}"

    def check(*given: str) -> str:
        container = only(dev, list(given), tmp_path / f"container-{len(given)}")
        flags = ("--vm", manifest, "--sysfs", sys, "--dev", container)
        return gpu_launcher("check", *flags, env={variable: gpu}).stdout

    missing = f"leaves {audio} (audio) behind: the container does not have {nodes[-1]}, the node of its IOMMU group"
    assert missing in check(*nodes[:-1])
    assert "behind" not in check(*nodes)


@both_cards
def test_by_dra_the_card_is_one_device_with_all_nodes_and_its_metadata_names_the_gpu(
    resource: str, copied_machine: Machine, short_dir: Path
) -> None:
    gpu, audio, nodes = CARDS[resource]
    names = {of: f"pci-{card[0].replace(':', '-').replace('.', '-')}" for of, card in CARDS.items()}
    sys = copied_machine(NAME)
    with running_cluster(short_dir, sys) as cluster, cluster.driver(CONFIG):
        cluster.wait_for(*names.values())
        attributes = cluster.published()[names[resource]]["attributes"]
        assert attributes["functions"] == {"int": 2}
        claim = cluster.claim(names[resource])
        (answer,) = cluster.kubelet.prepare(claim).values()
        assert answer.error == ""
        (specification,) = cluster.specifications().values()
        edits = specification["devices"][0]["containerEdits"]
        assert [node["path"] for node in edits["deviceNodes"]] == nodes
        metadata = next(documents(Path(edits["mounts"][0]["hostPath"]).read_text()))
        (device,) = metadata["requests"][0]["devices"]
        assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": gpu}
        # Who has one of its groups has the card; without its audio it is another, and still a device.
        bind(sys, audio, "snd_hda_intel")
        wait_until(lambda: cluster.published()[names[resource]]["attributes"]["functions"] == {"int": 1})
        assert cluster.kubelet.unprepare(claim) == {claim["metadata"]["uid"]: ""}
        assert cluster.specifications() == {}


@pytest.mark.parametrize("device_id", ["0000:43:00.0", "0000:44:00.0", "24", "25"])
def test_who_has_one_group_or_function_has_the_card(device_id: str, machine: Machine, pci_ids: PCIIDs) -> None:
    assigned = frozenset({Assignment("vms/a", "devices.kubevirt.io/audio", device_id)})
    ids = {"devices.kubevirt.io/audio": frozenset({"24", "25", device_id})}
    snapshot = snapshot_of(machine(NAME), pci_ids, assignments=assigned, resource_ids=ids)
    assert snapshot.user(snapshot.inventory.by_id["0000:43:00.0"]) == "pod vms/a"
    assert {device: why.wrong for device, why in snapshot.troubles.items()} == {
        "0000:43:00.0": "is in use by pod vms/a, which has it as devices.kubevirt.io/audio"
    }


def with_daily_drivers(root: Path) -> Node:
    """The machine before anything of it is bound."""
    daily = {0x030000: "amdgpu", 0x040300: "snd_hda_intel"}
    return Node(root, (replace(one, driver=daily.get(one.pci_class, one.driver)) for one in MACHINES[NAME]))


@both_cards
def test_all_functions_of_the_card_are_bound_and_given_back_by_any_of_its_addresses(
    resource: str, tmp_path: Path
) -> None:
    gpu, audio, _ = CARDS[resource]
    node = with_daily_drivers(tmp_path)
    plan = node.to_bind(audio)
    assert addresses(plan) == [audio, gpu]
    node.carry_out(plan)
    assert addresses(node.to_unbind(audio)) == [gpu, audio]
    node.carry_out(node.to_unbind(gpu))
    assert {address: now.driver for address, now in node.remembered().items()} == {}
    assert addresses(node.to_bind(gpu)) == [audio, gpu]


@both_cards
def test_a_card_whose_audio_is_in_use_is_not_bound_in_part(resource: str, tmp_path: Path) -> None:
    gpu, audio, _ = CARDS[resource]
    node = with_daily_drivers(tmp_path)
    part(node.sys, audio, "sound/card1/controlC1", "sound", "snd/controlC1")
    process(node.proc, 812, "pipewire", "/dev/snd/controlC1")
    with pytest.raises(Refusal, match=rf"cannot bind {gpu}: {audio} is in use: /dev/snd/controlC1 is open in pipewire"):
        node.to_bind(gpu)


def offered(sys: Path, pci_ids: PCIIDs, *rules: Rule) -> dict[str, tuple[str | None, int]]:
    devices = snapshot_of(sys, pci_ids, Config(offer=rules)).inventory.devices
    return {one.id: (one.resource if one.withheld is None else None, len(one.functions)) for one in devices}


AUDIO = Rule(device=("1002:ab28", "8086:4f90"), resource="example.com/audio")
WHOLE = {"0000:03:00.0": (RADEON, 2), "0000:43:00.0": (ARC, 2)}
GPUS = {"0000:03:00.0": (RADEON, 1), "0000:43:00.0": (ARC, 1)}


def test_audio_that_a_rule_of_the_config_is_about_stays_the_device_that_it_was(
    machine: Machine, pci_ids: PCIIDs
) -> None:
    sys = machine(NAME)
    assert offered(sys, pci_ids) == WHOLE
    alone = {"0000:03:00.1": ("example.com/audio", 1), "0000:44:00.0": ("example.com/audio", 1)}
    assert offered(sys, pci_ids, AUDIO) == GPUS | alone
    kept = Rule(pci_class="0403", withhold=True)
    assert offered(sys, pci_ids, kept) == GPUS | dict.fromkeys(alone, (None, 1))
    # A rule that is about the GPU, too, is about the card.
    both = Rule(vendor=("1002", "8086"), pci_class=("03", "04"), resource="example.com/gpu")
    assert offered(sys, pci_ids, both, AUDIO) == dict.fromkeys(WHOLE, ("example.com/gpu", 2))


def test_bind_all_takes_no_gpu_for_a_rule_about_its_audio(tmp_path: Path) -> None:
    node = with_daily_drivers(tmp_path)
    gpus = Rule(pci_class="03", withhold=True)
    assert addresses(node.to_bind_all(Config(offer=(gpus, AUDIO)))) == ["0000:03:00.1", "0000:44:00.0"]
    every = ["0000:03:00.0", "0000:03:00.1", "0000:43:00.0", "0000:44:00.0"]
    assert addresses(node.to_bind_all(Config(offer=(AUDIO,)))) == every


def test_each_card_has_the_settings_of_its_own_rule(tmp_path: Path) -> None:
    node = with_daily_drivers(tmp_path)
    rules = (replace(AUDIO, d3cold_allowed=False), Rule(pci_class="03", resource="a.b/gpu", d3cold_allowed=True))
    for address in ("0000:03:00.0", "0000:03:00.1"):
        node.write(address, "d3cold_allowed", "1")
    plan = node.to_bind("0000:03:00.0", config=Config(offer=rules))
    assert {str(move.address): move.settings for move in plan.moves} == {
        "0000:03:00.1": (Setting("d3cold_allowed", "1", "0"),),
        "0000:03:00.0": (),
    }


def test_the_hook_adds_audio_from_another_group_with_an_alias_and_no_seat_moves(
    gpu_launcher: Command, machine: Machine, tmp_path: Path
) -> None:
    """KubeVirt's variable names the GPUs, and its domain has no more."""
    cards = (Card(alias="gpu-arc", source="0000:43:00.0"), Card(alias="gpu-radeon", source="0000:03:00.0"))
    (tmp_path / "domain.xml").write_bytes(domain(Parts(cards=cards)))
    flags = ("--explain", tmp_path / "domain.xml", "--sysfs", machine(NAME))
    text = gpu_launcher("hook", *flags).stdout
    assert text.splitlines()[:3] == [
        "gpu 'arc': 0000:43:00.0 (VGA); in the guest 0000:01:00.0",
        "gpu 'radeon': 0000:03:00.0 (VGA), 0000:03:00.1 (audio); in the guest 0000:02:00.0, .1",
        "gpu 'arc': 0000:44:00.0 (audio); in the guest 0000:03:00.0",
    ]
    for address in ("0000-03-00-1", "0000-44-00-0"):
        assert f'+    <alias name="ua-companion-{address}"/>' in " ".join(text.split("\n")).replace("      ", "    ")


def test_the_hook_says_what_of_a_ryzens_slot_stays_and_why(gpu_launcher: Command, tmp_path: Path) -> None:
    tree = compose_listing(tmp_path / "node", (LISTINGS / "apu-audio-left-on-its-driver.lst").read_text())
    (tmp_path / "domain.xml").write_bytes(domain(Parts(cards=(Card(alias="gpu-own", source="0000:c5:00.0"),))))
    result = gpu_launcher("hook", "--explain", tmp_path / "domain.xml", "--sysfs", tree.sys)
    others = "0000:c5:00.2 (encryption), 0000:c5:00.3 (USB), 0000:c5:00.6 (audio)"
    assert result.stdout.splitlines()[1] == (
        f"gpu 'own' leaves {others} behind: only on its slot, and the processor's (vendor 1022, the GPU's is 1002); "
        "leave them to the node"
    )
    assert "gpu 'own': leaves 0000:c5:00.1 (audio) behind: that is bound to snd_hda_intel" in result.stderr
