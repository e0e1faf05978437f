"""The mission, on real VFIO and with a real kubelet: from a node with cards to a Linux that has them, and back. The VM
comes as a user brings it: `gpu-launcher pod vm.yaml | kubectl apply -f -`, and nobody helps the pod. Beside its cards
it has a vGPU, which the plugin's init container has made, and a card of two IOMMU groups.

The tests stand in the order of the node's life and share its VMs, since a guest in the guest takes a minute to boot;
the node is booted a second time at the end.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.vm.memory.pod import page_tables
from tests.lab import board, build, counting, pods, table
from tests.lab.conftest import Timed
from tests.lab.lab import Console, Lab
from tests.lab.machine import ALONE, BOARD, CARD, FAR, MODERN, NEWCOMER, NVME, SCREEN, SHARED, USB
from tests.lab.page_tables import page_tables_of
from tests.lab.terminal import Terminal
from tests.lab.vgpu_driver import check_answers, check_functions, check_openings

MACHINE = replace(MODERN, vgpus=True, board=True)

#: The card that is cut into vGPUs, and the functions that become one.
CUT, VGPUS = f"{NVME}.0", (f"{NVME}.1", f"{NVME}.2")
VGPU, TYPE, NUMBER = "10de:26b9", "L40S-24Q", "1155"
VGPU_RESOURCE = "example.com/vgpu"
#: vGPUs of another card, which can migrate: serial ports, from which comes back what is written to them.
PORT, PORT_RESOURCE, PORTS_OF = "Single port serial", "example.com/port", "1013:00b8"
CONFIG: dict[str, Any] = {
    **pods.CARDS,
    "vgpus": [{"device": VGPU, "types": {TYPE: len(VGPUS)}}, {"device": PORTS_OF, "types": {PORT: 2}}],
    "offer": [
        *pods.CARDS["offer"],
        {"vgpu_type": f"NVIDIA {TYPE}", "resource": VGPU_RESOURCE},
        {"mdev_type": PORT, "resource": PORT_RESOURCE},
        board.OFFER,
        table.USB,
    ],
}
ONE_VGPU = {"domain": {"devices": {"gpus": [{"name": "vgpu", "deviceName": VGPU_RESOURCE}]}}}
#: The guest's second serial port is that vGPU.
_COUNTS = counting.counts(
    "/dev/ttyS1",
    {"gpus": [{"name": "port", "deviceName": PORT_RESOURCE, "virtualGPUOptions": {"display": {"enabled": False}}}]},
)
#: The two cards that are free to go, and where the guest has them.
HOSTDEVS = [
    (f"{ALONE}.0", "0000:01:00.0"),
    (f"{ALONE}.1", "0000:01:00.1"),
    (f"{FAR}.0", "0000:02:00.0"),
    (f"{FAR}.1", "0000:02:00.1"),
]
#: The devices of the first VM beside its vGPU.
GIVEN = (f"{ALONE}.0", f"{FAR}.0", BOARD[0])
#: What the guest finds behind its root ports.
GUEST = {
    "0000:01:00.0": CARD[0],
    "0000:01:00.1": CARD[1],
    "0000:02:00.0": CARD[0],
    "0000:02:00.1": CARD[1],
    "0000:03:00.0": VGPU,
}

HELLO = "GUEST cloud-init says hello"
CLAIM_SAYS = "a writable claim"
#: All that a VM can bring along. Where the volumes are, in that order: vda, vdb, vdc.
VOLUMES = {
    "volumes": [
        {"name": "system", "containerDisk": {"image": build.DISK}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "seed", "cloudInitNoCloud": {"userData": f"#!/bin/sh\necho {HELLO}\n"}},
    ],
    "networks": [{"name": "default", "pod": {}}],
    "domain": {
        "devices": {
            "autoattachPodInterface": True,
            "interfaces": [{"name": "default", "passt": {}, "ports": [{"port": 8080}]}],
            "disks": [{"name": name, "disk": {"bus": "virtio"}} for name in ("system", "data", "seed")],
            "gpus": [
                *({"name": name, "deviceName": pods.RESOURCE} for name in ("gpu1", "gpu2")),
                {"name": "vgpu", "deviceName": VGPU_RESOURCE},
                board.ENTRY,
            ],
        }
    },
}


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    """Its pod, once it runs."""
    return lab.start_plugin(CONFIG)


@pytest.fixture(scope="module")
def vm(lab: Lab, plugin: str) -> Iterator[Console]:
    """A VM with two cards, a vGPU, a card of two groups, a disk from an image, one in a claim, cloud-init, and the
    pod's network, whose launcher is process 1 of its pod."""
    lab.wait_for_cards(2)
    lab.node.sh(
        f"mkdir -p /var/lib/claim && echo {CLAIM_SAYS} > /var/lib/claim/disk.img"
        " && truncate -s 1M /var/lib/claim/disk.img && chown -R 107:107 /var/lib/claim"
    )
    lab.cluster.apply(*pods.claim("data", "/var/lib/claim"))
    with lab.vm("first", 2, more=VOLUMES):
        yield lab.console("first")


def test_the_driver_makes_vgpus_as_the_files_do_by_which_the_plugin_is_tested(lab: Lab, tmp_path: Path) -> None:
    check_answers(lab, tmp_path)
    check_openings(lab)
    check_functions(lab)


def test_the_plugins_pod_registers_and_the_node_shows_its_cards(lab: Lab, plugin: str) -> None:
    lab.wait_for_cards(2)
    assert lab.cluster.get("node", lab.node.name)["status"]["capacity"][pods.RESOURCE] == "2"


def test_the_init_container_makes_the_vgpus_of_the_config_and_the_plugin_offers_them(lab: Lab, plugin: str) -> None:
    lab.wait_for_cards(len(VGPUS), VGPU_RESOURCE)
    lab.wait_for_cards(2, PORT_RESOURCE)
    assert lab.cluster.kubectl("logs", plugin, "-c", "vgpus").splitlines() == [
        *[f"{SCREEN}: make a vGPU of type {PORT}"] * 2,
        f"{CUT}: turn on its virtual functions (sriov-manage -e)",
        *[f"{CUT}: make a vGPU of type {TYPE}"] * len(VGPUS),
    ]
    assert _types(lab) == [NUMBER] * len(VGPUS)


def test_the_nodes_page_and_its_metrics_come_through_the_api_servers_proxy(lab: Lab, plugin: str) -> None:
    lab.wait_for_cards(2)
    page, metrics = (
        lab.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/{plugin}:{port}/proxy/{path}")
        for port, path in ((8081, ""), (8080, "metrics"))
    )
    assert all(f"{card}.0" in page for card in (ALONE, FAR))
    assert "gpu_plugin_build_info" in metrics


def test_inventory_agrees_with_what_was_built_also_on_what_is_withheld(lab: Lab, plugin: str) -> None:
    devices = lab.inventory(plugin)
    ports = [address for address, device in devices.items() if device["model"].startswith(PORT)]
    assert len(ports) == 2
    assert {address: device["healthy"] for address, device in devices.items()} == {
        **dict.fromkeys(ports, True),
        SCREEN: False,
        f"{ALONE}.0": True,
        **{f"{shared}.0": False for shared in SHARED},
        f"{FAR}.0": True,
        CUT: False,
        **dict.fromkeys(VGPUS, True),
        BOARD[0]: True,
        f"{USB}.0": True,
    }
    assert [function["address"] for function in devices[BOARD[0]]["functions"]] == [*BOARD]
    assert len(devices[BOARD[0]]["iommuGroups"]) == 2
    for slot in (ALONE, *SHARED, FAR):
        functions = devices[f"{slot}.0"]["functions"]
        assert [(f["address"], f["id"], f["driver"]) for f in functions] == [
            (f"{slot}.0", CARD[0], "vfio-pci"),
            (f"{slot}.1", CARD[1], "vfio-pci"),
        ]
    for one, other in (SHARED, SHARED[::-1]):
        assert f"with {other}.0" in devices[f"{one}.0"]["reason"]["wrong"]
    assert {slot: devices[f"{slot}.0"]["numaNode"] for slot in (ALONE, *SHARED, FAR)} == {
        ALONE: None, SHARED[0]: None, SHARED[1]: None, FAR: 1,
    }  # fmt: skip
    groups = lab.node.sh("for card in 01 04 05 41; do readlink /sys/bus/pci/devices/0000:$card:00.0/iommu_group; done")
    found = [devices[f"{slot}.0"]["iommuGroup"] for slot in (ALONE, *SHARED, FAR)]
    assert found == [int(link.rpartition("/")[2]) for link in groups.split()]
    assert found[1] == found[2]
    assert len({*found}) == 3


def test_the_variable_names_one_address_a_card(lab: Lab, vm: Console) -> None:
    value = lab.cluster.kubectl("exec", "first", "--", "printenv", pods.VARIABLE).strip()
    assert value == f"{ALONE}.0,{FAR}.0"


def test_the_kubelets_view_of_who_has_what_agrees_with_ours(lab: Lab, vm: Console, plugin: str) -> None:
    assert _in_use(lab, plugin) == dict.fromkeys((*GIVEN, _vgpu(lab, "first")), "default/first")


def test_two_cards_and_a_vgpu_are_three_slots_of_the_guest_companions_included(lab: Lab, vm: Console) -> None:
    assert _cards(vm) == GUEST
    hostdevs = _hostdevs(lab.cluster.kubectl("logs", "first"))
    assert hostdevs[:5] == [*HOSTDEVS, (_vgpu(lab, "first"), "0000:03:00.0")]


def test_a_card_of_two_groups_is_one_device_and_one_entry_and_the_guest_has_it_whole(lab: Lab, vm: Console) -> None:
    variable = "PCI_RESOURCE_EXAMPLE_COM_BOARD"
    assert lab.cluster.kubectl("exec", "first", "--", "printenv", variable).strip() == BOARD[0]
    board.check_board(lab, "first", vm)
    board.check_hook(lab, "first")


def test_the_guest_has_its_disks_and_an_address(lab: Lab, vm: Console) -> None:
    said = vm.wait_for("GUEST end")
    for line in (f"disk vda says {build.DISK_SAYS}", f"disk vdb says {CLAIM_SAYS}", "disk vdc has meta-data"):
        assert f"GUEST {line}" in said
    assert HELLO in said
    assert re.search(r"GUEST address \d+\.\d+\.\d+\.\d+", said)


def test_every_process_of_the_pod_is_a_users_without_a_capability(lab: Lab, vm: Console) -> None:
    """But for the one that looks, which comes as root."""
    looked = "for pid in /proc/[0-9]*; do grep -hE '^(Name|Uid|CapPrm):' $pid/status; done"
    said = lab.cluster.kubectl("exec", "first", "--", "sh", "-c", looked)
    found = re.findall(r"Name:\t(\S+)\nUid:\t(\d+)\t.*\nCapPrm:\t(\w+)", said)
    of_the_vm = {name: (user, capabilities) for name, user, capabilities in found if user != "0"}
    assert {*of_the_vm.values()} == {("107", "0" * 16)}
    assert {name[:4] for name in of_the_vm} >= {"gpu-", "qemu", "pass"}


def test_ctl_says_that_it_runs_and_the_pod_is_ready(lab: Lab, vm: Console) -> None:
    assert lab.cluster.kubectl("exec", "first", "--", "gpu-launcher", "ctl", "state").startswith(
        "default/first: running"
    )
    lab.until("the pod is ready", lambda: _is_ready(lab, "first"), 150)


def test_check_has_nothing_to_say_against_what_runs(lab: Lab, vm: Console) -> None:
    said = lab.cluster.kubectl("exec", "first", "--", "sh", "-c", "gpu-launcher check || echo exit $?", seconds=150)
    assert "exit 4" not in said, said


def test_a_vm_that_asks_for_more_than_is_left_stays_pending(lab: Lab, vm: Console) -> None:
    with lab.pod("third", 1):
        assert f"Insufficient {pods.RESOURCE}" in lab.unschedulable("third")
        assert lab.phase("third") == "Pending"


@pytest.mark.thorough
def test_a_vm_that_asks_for_a_vgpu_waits_until_another_one_has_ended(lab: Lab, vm: Console) -> None:
    with lab.holder("other", 0, more=ONE_VGPU), lab.pod("waits", 0, sleeps=True, grace=1, more=ONE_VGPU):
        assert {_vgpu(lab, "first"), _vgpu(lab, "other")} == {*VGPUS}
        assert f"Insufficient {VGPU_RESOURCE}" in lab.unschedulable("waits")
        lab.cluster.delete("pod", "other")
        lab.until("the one that waited runs", lambda: lab.phase("waits") == "Running", 150)


def test_nothing_is_left_unreaped_in_the_pod(lab: Lab, vm: Console) -> None:
    # A process that has gone since the shell saw it is none that is left.
    states = lab.cluster.kubectl("exec", "first", "--", "sh", "-c", "grep -hs ^State: /proc/[0-9]*/status; true")
    assert "(sleeping)" in states
    assert "(zombie)" not in states


def test_a_vm_lives_on_while_the_kubelet_dies_and_the_plugin_registers_again(
    lab: Lab, vm: Console, plugin: str
) -> None:
    lab.kill_kubelet()
    registered = "registered, and watched by the kubelet"
    lab.until("the plugin registers again", lambda: lab.cluster.kubectl("logs", plugin).count(registered) >= 2, 150)
    lab.wait_for_cards(2)
    lab.wait_for_cards(1, board.RESOURCE)
    assert "GUEST end" in lab.console("first").wait_for("GUEST end")
    assert lab.restarts("first") == lab.restarts(plugin) == 0


@pytest.mark.thorough
def test_a_vm_lives_on_while_the_plugin_is_rolled_over_and_the_cards_stay(lab: Lab, vm: Console, plugin: str) -> None:
    """Two pods of it for a while: the old one goes when the kubelet watches the new one."""
    lab.cluster.kubectl("rollout", "restart", "daemonset/gpu-plugin")
    lab.cluster.kubectl("rollout", "status", "daemonset/gpu-plugin", "--timeout=0", seconds=220)
    lab.until("the old pod has gone", lambda: plugin not in lab.cluster.kubectl("get", "pods"), 60)
    replaced = lab.plugin()
    assert replaced != plugin
    lab.wait_for_cards(2)
    assert lab.restarts("first") == 0
    assert _in_use(lab, replaced) == dict.fromkeys((*GIVEN, _vgpu(lab, "first")), "default/first")
    assert lab.cluster.kubectl("logs", replaced, "-c", "vgpus") == "nothing to do\n"


def test_a_deleted_pod_shuts_its_guest_down_within_its_grace_and_what_it_wrote_is_in_the_claim(
    lab: Lab, vm: Console, plugin: str
) -> None:
    console = lab.console("first")
    console.wait_for("GUEST end")
    lab.box.spawn("first-log", *lab.cluster.argv("logs", "--follow", "first"))
    lab.cluster.delete("pod", "first")
    log = lab.box.logs / "first-log.log"
    lab.until("the launcher's last words", lambda: "default_first has ended: as requested" in log.read_text(), 30)
    console.wait_for("GUEST power button", 30)
    assert lab.node.sh("pidof qemu-system-x86_64 || echo none").strip() == "none"
    lab.until("nobody has a device", lambda: _in_use(lab, lab.plugin()) == {}, 60)
    assert "the guest was here" in lab.node.sh("cat /var/lib/claim/disk.img | tr -d '\\0'")


@pytest.fixture(scope="module")
def disks(lab: Lab, plugin: str) -> None:
    """The disks of the table's VMs."""
    table.prepare(lab)


@pytest.mark.parametrize("file", table.TABLE, ids=lambda file: file.stem)
def test_a_vm_of_the_table_has_its_disks_and_its_cards_where_explain_says(
    lab: Lab, disks: None, file: Path, timed: Timed
) -> None:
    with timed(file.stem):
        started = table.in_a_pod(lab, file)
    assert started.disks() == table.disks(file)
    assert started.devices() == table.explained(file, started.variables)


def test_a_guest_whose_vgpu_can_migrate_goes_on_in_another_pod(
    lab: Lab, plugin: str, terminal: Terminal, timed: Timed, pytestconfig: pytest.Config
) -> None:
    """With its memory, in which it counts, its uptime, and its port as it has set it up: else that would be silent.
    Suspended, and with --thorough moved as well."""
    lab.wait_for_cards(2, PORT_RESOURCE)
    counting.prepare(lab)
    with lab.vm("saved", 0, annotations=counting.TO_CLAIM, more=_COUNTS):
        resumed = counting.check_suspended(lab, terminal, timed, "saved")
        if pytestconfig.getoption("--thorough"):
            counting.check_moved(lab, terminal, timed, "saved", resumed)
        counting.delete(lab, terminal, "saved")


def test_a_guests_page_tables_are_those_that_its_pod_counts(
    lab: Lab, plugin: str, noted: Callable[[str], None]
) -> None:
    """Within 10 %. QEMU's own memory, the firmware's and the BARs have tables of small pages also where the guest's is
    in huge ones."""
    found = page_tables_of(lab, 256)
    small, transparent, huge = (found[pages] for pages in ("small", "transparent", "huge"))
    for pages, (qemu, kvm, iommu) in found.items():
        noted(f"page tables, 256 MiB in {pages} pages: QEMU {qemu >> 10}, KVM {kvm >> 10}, IOMMU {iommu >> 10} KiB")
    size = 256 << 20
    counted = page_tables(size, 4096) - page_tables(size, 2 << 20)
    assert [all_of_it - rest for all_of_it, rest in zip(small, huge, strict=True)] == pytest.approx(
        [counted] * 3, rel=0.1
    )
    assert transparent.qemu == pytest.approx(small.qemu, rel=0.1)
    assert max(transparent.kvm, transparent.iommu, huge.kvm, huge.iommu) < counted / 10


@pytest.mark.thorough
def test_the_next_vm_has_its_cards_from_the_older_dialect_and_with_numa_in_the_cells_of_their_nodes(
    lab: Lab, plugin: str
) -> None:
    """The variable lists every function, as older plugins do; the first process of the pod is somebody else's. The one
    that is alone is on bus 0, since its node is not known. That explain foretells this is test_plugin.py's."""
    older = ",".join(f"{slot}.{function}" for slot in (ALONE, FAR) for function in (0, 1))
    numa = {"gpu-launcher.dev/topology": "numa"}
    with lab.vm("second", 2, env={pods.VARIABLE: older}, share_processes=True, annotations=numa) as log:
        guest = dict(_hostdevs(log))
        assert [*guest] == [host for host, _ in HOSTDEVS]
        console = lab.console("second")
        assert _cards(console) == dict(zip(guest.values(), (*CARD, *CARD), strict=True))
        nodes, ways = console.nodes(), console.ways()
        for function in (0, 1):
            alone, far = guest[f"{ALONE}.{function}"], guest[f"{FAR}.{function}"]
            assert (alone[:7], alone[-1]) == ("0000:01", str(function))
            assert (far[:7], far[-1], nodes[far]) == ("0000:e0", str(function), "0")
            assert ways[far] == ("pci0000:df", "0000:df:00.0")


def test_without_the_capability_for_memlock_the_pod_says_what_cures_it(lab: Lab, plugin: str) -> None:
    with lab.pod("unable", 1, without=("SYS_RESOURCE",)):
        lab.wait_for_end("unable")
        log = lab.cluster.kubectl("logs", "unable")
        assert "ERROR RLIMIT_MEMLOCK: VFIO and SEV lock the guest's memory: 1280 MiB with libvirt's reserve" in log
        assert "LimitMEMLOCK=infinity (deploy/node, docs/restricted.md)" in log
        assert lab.exit_code("unable") == 1


def test_after_a_boot_with_one_more_device_in_front_nobody_gets_that_in_place_of_a_card(lab: Lab, plugin: str) -> None:
    """The pod is still bound to the node, and the kubelet remembers what it got.

    A kubelet of 1.36 refuses the pod, since the plugin's has not started yet. One that starts its container again does
    that with the old answer, which another pod is given here: the launcher refuses it by its name.
    """
    with lab.holder("bound", 2, run_strategy="Always"):
        lab.node.reboot(replace(MACHINE, moved=True))
        assert lab.node.sh(f"cat /sys/bus/pci/devices/{ALONE}.0/vendor").strip() == f"0x{NEWCOMER[:4]}"
        lab.wait_for_end("bound")
        assert lab.cluster.get("pod", "bound")["status"]["reason"] == "UnexpectedAdmissionError"
    lab.wait_for_cards(2)
    lab.wait_for_cards(len(VGPUS), VGPU_RESOURCE)
    lab.wait_for_cards(2, PORT_RESOURCE)
    assert _types(lab) == [NUMBER] * len(VGPUS)
    with lab.pod("stale", 2, env={pods.VARIABLE: f"{ALONE}.0,{FAR}.0"}):
        lab.wait_for_end("stale")
        log = lab.cluster.kubectl("logs", "stale")
        assert re.search(rf"Z ERROR gpu 'gpu1': {ALONE}.0 .*virtio-pci", log, re.MULTILINE), log
        assert lab.exit_code("stale") == 1


def _types(lab: Lab) -> list[str]:
    """What each virtual function is, by its driver."""
    return lab.node.sh("cat /sys/bus/pci/devices/*/nvidia/current_vgpu_type").split()


def _vgpu(lab: Lab, pod: str) -> str:
    """The address of the vGPU that it has been given."""
    return lab.cluster.kubectl("exec", pod, "--", "printenv", "PCI_RESOURCE_EXAMPLE_COM_VGPU").strip()


def _is_ready(lab: Lab, pod: str) -> bool:
    conditions = lab.cluster.get("pod", pod)["status"]["conditions"]
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def _in_use(lab: Lab, plugin: str) -> dict[str, str]:
    """Which pod has which card, by the kubelet's pod resources as the plugin sees them."""
    return {address: device["inUseBy"] for address, device in lab.inventory(plugin).items() if device["inUseBy"]}


def _hostdevs(log: str) -> list[tuple[str, str]]:
    """Each device's host and guest address, as the launcher's log has them."""
    return re.findall(r"host (\S+) -> guest (\S+)", log)


def _cards(console: Console) -> dict[str, str]:
    """The guest's functions that look like a card's, but for its own screen: QEMU's VGA is called as the card is."""
    return {
        address: identity
        for address, identity in console.functions().items()
        if identity in (*CARD, VGPU) and not address.startswith("0000:00:")
    }
