"""Cards that are out of service: nobody new gets one, by either protocol, whoever has one keeps it, and every page says
who did it. What `kubectl gpuvm cordon` writes comes as the files of a ConfigMap, as the kubelet mounts it.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pci.address import PCIAddress
from pci.cordons import Cordon, key_of
from plugin.cards.config import Config, Serve
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment
from plugin.commands import doctor, inventory
from plugin.doctor import examine
from plugin.dra.slices import device_of
from plugin.node.cordons import cordons_of
from plugin.node.snapshot import DeviceState, Snapshot
from plugin.pages.page import node_page
from program.errors import Refusal
from program.problem import Severity
from tests.conftest import Command, Machine
from tests.kernel import bind, mediated_device
from tests.kubelet import Kubelet
from tests.pages import devices_on
from tests.plugin.daemon import BOTH, RTX_3090, fetch, free_port, serve, wait_until
from tests.plugin.device_plugin.test_daemon import BY_EVENTS
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster
from tests.processes import FIXTURES
from tests.snapshots import snapshot_of

CARD = "0000:01:00.0"
BY_ALICE = Cordon("alice", "2026-11-29T18:20:00Z", "its fan")
WORDS = "was taken out of service by alice on 2026-11-29 18:20 UTC (its fan)"
FIX = f"`kubectl gpuvm uncordon {NODE}/{CARD}` has it in service again"


def mounted(directory: Path, *cards: str, node: str = NODE) -> Path:
    """Write the ConfigMap's files as the kubelet does (pkg/volume/util/atomic_writer.go): a link is replaced."""
    version = directory / f"..{time.monotonic_ns()}"
    version.mkdir(parents=True)
    keys = [key_of(node, PCIAddress.parse(card)) for card in cards]
    for key in keys:
        (version / key).write_text(json.dumps(BY_ALICE.as_json()))
    new = directory / "..data_tmp"
    new.symlink_to(version.name)
    new.rename(directory / "..data")
    for left in directory.iterdir():
        if not left.name.startswith("..") and left.name not in keys:
            left.unlink()
    for key in keys:
        if not (directory / key).is_symlink():
            (directory / key).symlink_to(Path("..data") / key)
    return directory


@pytest.fixture
def cordons(tmp_path: Path) -> Path:
    return mounted(tmp_path / "cordons")


def cordoned(machine: Path, pci_ids: PCIIDs, config: Config | None = None, **told: Any) -> Snapshot:
    its = {PCIAddress.parse(CARD): BY_ALICE}
    return snapshot_of(machine, pci_ids, config, node=NODE, cordons=its, sees_pods=True, **told)


def test_the_kubelet_gives_the_card_to_nobody_and_a_pod_that_has_it_keeps_it(
    machine: Machine, kubelet: Kubelet, cordons: Path
) -> None:
    port = free_port()
    flags = ("--own-node", NODE, "--cordons", cordons, "--metrics", str(port))
    with serve(machine("two-rtx-3090"), kubelet.directory, *BY_EVENTS, *flags) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.allocate_devices(RTX_3090, [CARD], "vms/desk")
        mounted(cordons, CARD)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        plugin.wait_for_line(f"{CARD} (GA102 [GeForce RTX 3090]) is handed out to nobody: it {WORDS}")
        with pytest.raises(grpc.RpcError) as refused:
            kubelet.allocate_devices(RTX_3090, [CARD])
        assert f"{CARD} of {RTX_3090}: cannot be handed out: it {WORDS}; {FIX}" in str(refused.value.details())
        wait_until(lambda: 'pod="desk"' in fetch(port, "/metrics")[1])
        metrics = fetch(port, "/metrics")[1]
        (ours,) = (line for line in metrics.splitlines() if line.startswith(f'gpu_plugin_device{{device="{CARD}"'))
        assert 'state="cordoned"' in ours, "no alert for a device that is unhealthy"
        assert WORDS in ours
        assert f'gpu_plugin_devices{{node="{NODE}",resource="{RTX_3090}",state="cordoned"}} 1.0' in metrics
        mounted(cordons)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_claim_gets_it_no_more_and_one_that_has_it_keeps_it(
    short_dir: Path, cordons: Path, copied_machine: Machine
) -> None:
    first, second = "pci-0000-01-00-0", "pci-0000-e1-00-0"
    with (
        running_cluster(short_dir, copied_machine("two-rtx-3090")) as cluster,
        cluster.driver("serve: dra\n", "--cordons", cordons, "--rescan", "1000"),
    ):
        cluster.wait_for(first, second)
        has = cluster.claim(first)
        assert not cluster.kubelet.prepare(has)[has["metadata"]["uid"]].error
        mounted(cordons, CARD)
        cluster.wait_for(second)
        assert taints(cluster, first) == [("gpu-launcher.dev/cordoned", "by-alice")]
        assert cluster.kubelet.health()[first] == (1, ""), "a VM that runs has nothing to fear"
        assert not cluster.kubelet.prepare(has)[has["metadata"]["uid"]].error, "its containers may start again"
        cluster.kubelet.unprepare(has)
        late = cluster.claim(first)
        assert WORDS in cluster.kubelet.prepare(late)[late["metadata"]["uid"]].error
        mounted(cordons)
        cluster.wait_for(first, second)


def taints(cluster: Cluster, device: str) -> list[tuple[str, str]]:
    return [(each["key"], each["value"]) for each in cluster.published()[device]["taints"]]


def test_every_page_says_who_did_it_and_who_still_has_it(machine: Machine, pci_ids: PCIIDs) -> None:
    assigned = frozenset({Assignment("vms/desk", RTX_3090, CARD)})
    seen = cordoned(machine("two-rtx-3090"), pci_ids, assignments=assigned)
    (shown,) = (each for each in devices_on(node_page(seen).html) if each.id == CARD)
    assert shown == (CARD, "cordoned", "pod vms/desk", f"{WORDS}; {FIX}")
    assert (
        f"{RTX_3090}, in use by pod vms/desk, cordoned: {WORDS}" in inventory._row(seen, seen.inventory.by_id[CARD])[-1]
    )
    as_json = inventory._as_json(seen, pci_ids)["devices"]
    assert [each["cordon"] for each in as_json] == [BY_ALICE.as_json(), None]
    assert (as_json[0]["inUseBy"], as_json[0]["healthy"]) == ("vms/desk", False)
    (note,) = (each for each in examine(seen) if each.device == CARD and WORDS in each.problem.wrong)
    assert note.severity is Severity.NOTE, "whoever did it knows"
    assert f"{RTX_3090}, cordoned, in use by pod vms/desk" in "\n".join(
        doctor._heading(seen, seen.inventory.devices[0])
    )


def test_a_card_that_is_mended_is_no_alarm_whatever_it_does(copied_machine: Machine, pci_ids: PCIIDs) -> None:
    sys = copied_machine("two-rtx-3090")
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    seen = cordoned(sys, pci_ids, Config(serve=Serve.DRA), claimed={})
    device = seen.inventory.by_id[CARD]
    assert seen.state(device) is DeviceState.CORDONED
    assert f"{WORDS}, and is in group 11" in str(seen.reason(device))
    assert [each["key"] for each in device_of(seen, device, NODE)["taints"]] == [
        "gpu-launcher.dev/cordoned",
        "gpu-launcher.dev/unhealthy",
    ]


def test_what_is_made_of_the_card_goes_with_it(copied_machine: Machine, pci_ids: PCIIDs) -> None:
    sys = copied_machine("two-rtx-3090")
    uuid = "8b6f3c3e-1111-4222-8333-000000000001"
    mediated_device(sys, CARD, uuid, "GRID T4-1Q", group=90)
    seen = cordoned(sys, pci_ids)
    assert WORDS in str(seen.reason(seen.inventory.by_id[uuid]))


def test_an_address_without_a_device_is_told(
    machine: Machine, pci_ids: PCIIDs, gpu_plugin: Command, cordons: Path
) -> None:
    seen = replace(cordoned(machine("two-rtx-3090"), pci_ids), cordons={PCIAddress.parse("0000:99:00.0"): BY_ALICE})
    assert "Out of service, and no device of this node: 0000:99:00.0." in node_page(seen).html
    mounted(cordons, "0000:99:00.0")
    flags = ("--sysfs", machine("two-rtx-3090"), "--pci-ids", FIXTURES / "pci.ids", "--cordons", cordons)
    told = gpu_plugin("inventory", *flags, "--own-node", NODE)
    assert "0000:99:00.0 is out of service, and no device of this node" in told.stdout
    nameless = gpu_plugin("inventory", *flags)
    assert "--cordons: is of all nodes, and this one's name is not known; name it with --own-node" in nameless.stderr
    assert nameless.returncode == 2


def test_a_file_is_of_the_node_whose_name_it_has_and_one_that_cannot_be_read_counts(cordons: Path) -> None:
    for node in ("gpu-1", f"{NODE}.example.com", "x"):
        mounted(cordons, CARD, node=node)
    assert cordons_of(NODE, cordons) == {}
    mounted(cordons, CARD)
    assert cordons_of(NODE, cordons) == {PCIAddress.parse(CARD): BY_ALICE}
    key = (cordons / key_of(NODE, PCIAddress.parse(CARD))).resolve()
    key.unlink()
    key.mkdir()
    assert cordons_of(NODE, cordons) == {PCIAddress.parse(CARD): Cordon()}
    with pytest.raises(Refusal, match="cannot be read: No such file"):
        cordons_of(NODE, cordons / "none")
