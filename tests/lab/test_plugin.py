"""The plugin in its pod, without a guest: what it makes of a node that changes under it."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from plugin.watch.sockets import PREFIX
from tests.fabric.standin import SOCKET, Manager, compiled
from tests.lab import pods
from tests.lab.lab import Lab
from tests.lab.machine import ALONE, FAR, MODERN, NVME, SCREEN, SHARED
from tests.lab.recorded import check_recorded

MACHINE = MODERN

VFS = "example.com/nvme-vf"
#: Four GPUs of an H100 board, as its Fabric Manager would have it: all together they are its partition 1.
MODULES = {f"{slot}.0": module for module, slot in enumerate((ALONE, *SHARED, FAR), start=1)}
PARTITION = 1
#: What stands for libnvfm is on the node, where the plugin's pod may write: it keeps the manager in a file beside it.
LIBRARY = "/var/lib/gpu-plugin/nvfm/libnvfm.so.1"
CONFIG: dict[str, Any] = {
    "offer": [*pods.CARDS["offer"], {"device": "1b36:0010", "driver": "vfio-pci", "resource": VFS}],
    "node_devices": {**pods.CARDS["node_devices"], "vhost-net": 3},
    "fabric": {"manager": SOCKET, "library": LIBRARY, "modules": MODULES},
}
TOGETHER = {**CONFIG, "groups": "together"}
#: Whatever it hears of the node, the kernel's events have told: it looks by itself but once an hour.
BY_EVENTS = "--rescan=3600"


#: Every second what the manager has done, and then whether a QEMU runs: one that does may have begun between the two.
_WATCHED = "/run/watched"
_WATCHING = f"""
setsid sh -c 'while sleep 1; do
    did=$(cat {LIBRARY}.log 2> /dev/null | tr "\\n" ,); echo "$did $(pidof qemu-system-x86_64 > /dev/null && echo runs)"
done' > {_WATCHED} 2>&1 < /dev/null &
"""


@pytest.fixture(scope="module")
def plugin(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    manager = Manager(compiled(tmp_path_factory.mktemp("compiled")), tmp_path_factory.mktemp("libnvfm"))
    for file in (manager.library, Path(f"{manager.library}.manager")):
        _put(lab, file, f"{Path(LIBRARY).parent}/{file.name}")
    _put(lab, manager.library, "/usr/lib/x86_64-linux-gnu/libnvfm.so.1")  # which deploy/plugin mounts
    return lab.start_plugin(CONFIG, BY_EVENTS)


def test_the_init_container_bound_every_card_and_nothing_else(lab: Lab, plugin: str) -> None:
    assert {slot: lab.drivers(slot) for slot in (ALONE, *SHARED, FAR)} == {
        slot: ["vfio-pci", "vfio-pci"] for slot in (ALONE, *SHARED, FAR)
    }
    assert lab.drivers(NVME)[0] == "nvme"
    lab.wait_for_cards(2)
    said = lab.cluster.kubectl("logs", plugin, "-c", "bind")
    assert f"{ALONE}.1: no driver -> vfio-pci" in said


def test_the_recorded_machine_is_this_one(lab: Lab, plugin: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    check_recorded(lab, plugin, tmp_path, pytestconfig)


def test_binding_again_changes_nothing(lab: Lab, plugin: str) -> None:
    assert lab.bind("bind", "--all", f"--config={pods.CONFIG}") == (0, "nothing to do\n")


def test_the_screen_of_the_firmware_is_not_given_away(lab: Lab, plugin: str) -> None:
    code, said = lab.bind("bind", SCREEN)
    assert code == 1
    assert "boot VGA" in said


def test_a_disk_with_a_mounted_filesystem_is_not_given_away(lab: Lab, plugin: str) -> None:
    lab.node.sh(f"echo 0 > /sys/bus/pci/devices/{NVME}.0/sriov_numvfs; mkdir -p /run/disk")
    lab.node.sh("mount -o ro,noload /dev/nvme0n1 /run/disk")
    try:
        code, said = lab.bind("bind", f"{NVME}.0")
    finally:
        lab.node.sh("umount /run/disk")
    assert code == 1
    assert "mounted" in said
    assert lab.drivers(NVME) == ["nvme"]


def test_a_companion_without_its_driver_makes_the_card_unhealthy_until_it_is_back(lab: Lab, plugin: str) -> None:
    lab.wait_for_cards(2)
    _unbind(lab, f"{ALONE}.1")
    lab.wait_for_cards(1)
    device = lab.inventory(plugin)[f"{ALONE}.0"]
    assert device["reason"] == {
        "subject": f"{ALONE}.0",
        "wrong": f"is not whole: {ALONE}.1 (audio) is bound to no driver",
        "fix": "bind it to vfio-pci",
    }
    assert lab.cluster.get("node", lab.node.name)["status"]["capacity"][pods.RESOURCE] == "2"
    _probe(lab, f"{ALONE}.1")
    lab.wait_for_cards(2)


def test_a_card_whose_companion_was_rebound_before_the_kubelet_heard_is_refused_by_name(lab: Lab, plugin: str) -> None:
    """The plugin is stopped until the kubelet has asked it for the cards, by the old list."""

    def asked() -> str:
        """The plugin's connections with something to read."""
        return lab.node.sh(f"ss -xH state established | awk '$2 && /{PREFIX}/'")

    lab.wait_for_cards(2)
    process = lab.node.sh("grep -lz 'gpu-plugi[n]' /proc/[0-9]*/cmdline | head -n 1").split("/")[2]
    lab.node.sh(f"kill -STOP {process}")
    try:
        _unbind(lab, f"{ALONE}.1")
        # Both cards, so that the broken one is among them; and nothing else that the kubelet might ask for before them.
        lab.cluster.apply(*pods.vm("refused", 2, annotations={"gpu-launcher.dev/allow-emulation": "true"}))
        lab.until("the kubelet asks for cards", asked, 60)
    finally:
        lab.node.sh(f"kill -CONT {process}")

    def message() -> str | None:
        status = lab.cluster.get("pod", "refused")["status"]
        return status["message"] if status["phase"] == "Failed" else None

    assert f"{ALONE}.1 (audio) is bound to no driver" in lab.until("the pod is refused", message, 60)
    lab.cluster.delete("pod", "refused")
    _probe(lab, f"{ALONE}.1")
    lab.wait_for_cards(2)


def test_virtual_functions_that_are_made_while_it_runs_appear_and_go(lab: Lab, plugin: str) -> None:
    assert lab.allocatable(VFS) == 0
    physical = f"/sys/bus/pci/devices/{NVME}.0"
    lab.node.sh(f"echo 0 > {physical}/sriov_drivers_autoprobe; echo 2 > {physical}/sriov_numvfs")
    for number in (1, 2):
        lab.node.sh(f"echo vfio-pci > /sys/bus/pci/devices/{NVME}.{number}/driver_override")
        _probe(lab, f"{NVME}.{number}")
    lab.wait_for_cards(2, VFS)
    _unbind(lab, f"{NVME}.1")
    lab.wait_for_cards(1, VFS)


def test_a_device_of_the_node_is_shared(lab: Lab, plugin: str) -> None:
    resource = "devices.gpu-launcher.dev/vhost-net"
    assert lab.cluster.get("node", lab.node.name)["status"]["capacity"][resource] == "3"
    there = lab.node.sh("test -e /dev/vhost-net && echo 3 || echo 0")
    lab.wait_for_cards(int(there), resource)


@pytest.fixture(scope="module")
def together(lab: Lab, plugin: str) -> str:
    """The plugin, once another ConfigMap is in force."""
    lab.configure(TOGETHER, BY_EVENTS)
    lab.wait_for_log(plugin, "the config has changed and is in force", 150)
    return plugin


def test_a_changed_config_makes_one_unit_of_a_shared_group(lab: Lab, together: str) -> None:
    lab.wait_for_cards(3)
    unit = lab.inventory(together)[f"{SHARED[0]}.0"]
    assert [function["address"] for function in unit["functions"]] == [f"{slot}.{n}" for slot in SHARED for n in (0, 1)]


def test_the_doctor_has_nothing_to_say(lab: Lab, together: str) -> None:
    found = json.loads(
        _whatever(lab, together, "doctor", "--json", f"--config={pods.CONFIG}", "--dev=/host/dev", "--proc=/proc")
    )
    assert [finding for finding in found["findings"] if finding["severity"] in ("warning", "error")] == []


def test_a_unit_below_one_switch_is_below_one_in_the_guest_where_explain_foretold(lab: Lab, together: str) -> None:
    lab.node.sh(_WATCHING)
    with lab.vm("mirror", 3, annotations={"gpu-launcher.dev/topology": "mirror"}) as log:
        foretold = lab.foretold("mirror")
        assert sorted(re.findall(r"host (\S+) -> guest (\S+)", log)) == sorted(foretold)
        console, guest = lab.console("mirror"), dict(foretold)
        functions, ways = console.functions(), console.ways()
        assert {guest[host] for host in guest} <= functions.keys()
        one, other = (ways[guest[f"{slot}.0"]] for slot in SHARED)
        # The root, its port, the switch's upstream port; and of two cards a downstream port each.
        assert (len(one), one[:3], one[3] != other[3]) == (4, other[:3], True)
        said = lab.cluster.kubectl("exec", "mirror", "--", "printenv", f"FABRIC_PARTITION_{PARTITION}")
        assert said.strip() == ",".join(MODULES)


def test_its_gpus_were_a_partition_from_before_its_qemu_began_until_that_had_ended(lab: Lab, together: str) -> None:
    activated, deactivated = f"activate {PARTITION},", f"activate {PARTITION},deactivate {PARTITION},"

    def watched() -> list[tuple[str, ...]] | None:
        lines = [tuple(line.rsplit(" ", 1)) for line in lab.node.sh(f"cat {_WATCHED}").splitlines()]
        return lines if lines[-1] == (deactivated, "") else None

    # Before it, in between without QEMU and with it, and after it; there is a QEMU in between alone.
    expected = {("", ""), (activated, ""), (activated, "runs"), (deactivated, "")}
    assert {*lab.until("its partition is deactivated", watched, 150)} == expected


def _put(lab: Lab, file: Path, path: str) -> None:
    """Copy a file to the node."""
    text = b64encode(file.read_bytes()).decode()
    lab.node.sh(f"mkdir -p {Path(path).parent}\nbase64 -d > {path} << END\n{text}\nEND")


def _whatever(lab: Lab, plugin: str, *arguments: str) -> str:
    """What gpu-plugin prints, whatever its exit code, which is part of it."""
    script = f"gpu-plugin {' '.join(arguments)} || echo exit code $? >&2"
    return lab.cluster.kubectl("exec", plugin, "-c", "gpu-plugin", "--", "sh", "-c", script)


def _unbind(lab: Lab, address: str) -> None:
    lab.node.sh(f"echo {address} > /sys/bus/pci/devices/{address}/driver/unbind")


def _probe(lab: Lab, address: str) -> None:
    """Let the kernel look for the function's driver: its override says which."""
    lab.node.sh(f"echo {address} > /sys/bus/pci/drivers_probe")
