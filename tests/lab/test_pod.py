"""A VM as a user brings it: `gpu-launcher pod vm.yaml | kubectl apply -f -`, and nobody helps the pod.

The tests stand in the order of the node's life, which is booted a second time at the end.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.lab import build, pods
from tests.lab.control_plane import until
from tests.lab.lab import Console, Lab
from tests.lab.machine import ALONE, CARD, FAR, MODERN, NEWCOMER

MACHINE = MODERN

HELLO = "GUEST cloud-init says hello"
CLAIM_SAYS = "a writable claim"
#: Where the volumes are, in that order: vda, vdb, vdc.
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
        }
    },
}


@pytest.fixture(scope="module")
def vm(lab: Lab, plugin: str) -> Iterator[Console]:
    """A VM with two cards, a disk from an image, one in a claim, cloud-init, and the pod's network."""
    lab.wait_for_cards(2)
    lab.node.sh(
        f"mkdir -p /var/lib/claim && echo {CLAIM_SAYS} > /var/lib/claim/disk.img"
        " && truncate -s 1M /var/lib/claim/disk.img && chown -R 107:107 /var/lib/claim"
    )
    lab.cluster.apply(*pods.claim("data", "/var/lib/claim"))
    with lab.vm("whole", 2, more=VOLUMES):
        yield lab.console("whole")


def test_the_guest_has_its_cards_its_disks_and_an_address(lab: Lab, vm: Console) -> None:
    said = vm.wait_for("GUEST end")
    for line in (f"disk vda says {build.DISK_SAYS}", f"disk vdb says {CLAIM_SAYS}", "disk vdc has meta-data"):
        assert f"GUEST {line}" in said
    assert HELLO in said
    assert re.search(r"GUEST address \d+\.\d+\.\d+\.\d+", said)
    cards = {address for address, identity in vm.functions().items() if identity in CARD}
    assert {"0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:02:00.1"} <= cards


def test_every_process_of_the_pod_is_a_users_without_a_capability(lab: Lab, vm: Console) -> None:
    """But for the one that looks, which comes as root."""
    looked = "for pid in /proc/[0-9]*; do grep -hE '^(Name|Uid|CapPrm):' $pid/status; done"
    said = lab.cluster.kubectl("exec", "whole", "--", "sh", "-c", looked)
    found = re.findall(r"Name:\t(\S+)\nUid:\t(\d+)\t.*\nCapPrm:\t(\w+)", said)
    of_the_vm = {name: (user, capabilities) for name, user, capabilities in found if user != "0"}
    assert {*of_the_vm.values()} == {("107", "0" * 16)}
    assert {name[:4] for name in of_the_vm} >= {"gpu-", "qemu", "pass"}


def test_ctl_says_that_it_runs_and_the_pod_is_ready(lab: Lab, vm: Console) -> None:
    assert lab.cluster.kubectl("exec", "whole", "--", "gpu-launcher", "ctl", "state").startswith(
        "default/whole: running"
    )
    until("the pod is ready", lambda: _is_ready(lab, "whole"), 60)


def test_check_has_nothing_to_say_against_what_runs(lab: Lab, vm: Console) -> None:
    said = lab.cluster.kubectl("exec", "whole", "--", "sh", "-c", "gpu-launcher check || echo exit $?")
    assert "exit 4" not in said, said


def test_a_deleted_pod_shuts_its_guest_down_and_what_it_wrote_is_in_the_claim(lab: Lab, vm: Console) -> None:
    vm.wait_for("GUEST end")
    lab.cluster.delete("pod", "whole")
    vm.wait_for("GUEST power button", 30)
    assert "the guest was here" in lab.node.sh("cat /var/lib/claim/disk.img | tr -d '\\0'")


def test_after_a_boot_with_one_more_device_in_front_nobody_gets_that_in_place_of_a_card(lab: Lab, plugin: str) -> None:
    """The pod is still bound to the node, and the kubelet remembers what it got.

    A kubelet of 1.36 refuses the pod, since the plugin's has not started yet. One that starts its container again does
    that with the old answer, which another pod is given here: the launcher refuses it by its name.
    """
    with lab.vm("bound", 2, run_strategy="Always"):
        lab.node.reboot(replace(MODERN, moved=True))
        assert lab.node.sh(f"cat /sys/bus/pci/devices/{ALONE}.0/vendor").strip() == f"0x{NEWCOMER[:4]}"
        lab.wait_for_end("bound")
        assert lab.cluster.get("pod", "bound")["status"]["reason"] == "UnexpectedAdmissionError"
    lab.wait_for_cards(2)
    with lab.pod("stale", 2, env={pods.VARIABLE: f"{ALONE}.0,{FAR}.0"}):
        lab.wait_for_end("stale")
        log = lab.cluster.kubectl("logs", "stale")
        assert re.search(rf"^gpu-launcher: gpu 'gpu1': {ALONE}.0 .*virtio-pci", log, re.MULTILINE), log
        (container,) = lab.cluster.get("pod", "stale")["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 1


def _is_ready(lab: Lab, pod: str) -> bool:
    conditions = lab.cluster.get("pod", pod)["status"]["conditions"]
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)
