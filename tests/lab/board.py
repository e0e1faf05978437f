"""A card of several IOMMU groups, the machine's `board`: what is to hold of it in a VM, whoever has given it."""

import json

from launcher.vm.paths import MANIFEST
from tests.lab.lab import Console, Lab
from tests.lab.machine import BOARD
from tests.launcher.hook.kubevirt import Card, Parts, domain

RESOURCE = "example.com/board"
GPU, AUDIO = "1af4:1050", "1af4:1042"
OFFER = {"device": GPU, "resource": RESOURCE}
#: A manifest's entry for it.
ENTRY = {"name": "board", "deviceName": RESOURCE}


def check_board(lab: Lab, pod: str, console: Console) -> None:
    """Its pod has the nodes of both groups, and its guest both functions, where `explain` says in the pod."""
    links = lab.node.sh(" ".join(("readlink", *(f"/sys/bus/pci/devices/{each}/iommu_group" for each in BOARD))))
    groups = {int(link.rpartition("/")[2]) for link in links.split()}
    assert len(groups) == len(BOARD)
    nodes = {device["path"] for device in lab.runtime_spec(pod)["linux"]["devices"]}
    assert {f"/dev/vfio/{group}" for group in groups} <= nodes
    explained = json.loads(lab.cluster.kubectl("exec", pod, "--", "gpu-launcher", "explain", MANIFEST, "--json"))
    (entry,) = (each for each in explained["entries"] if each["name"] == ENTRY["name"])
    assert "leftBehind" not in entry
    assert [(each["host"], each["is"]) for each in entry["passed"]] == [(BOARD[0], "GPU"), (BOARD[1], "audio")]
    functions = console.functions()
    assert [functions[each["guest"]] for each in entry["passed"]] == [GPU, AUDIO]


def check_hook(lab: Lab, pod: str) -> None:
    """In a pod that sees the node's sysfs, the hook adds the audio to a domain of KubeVirt's that has the GPU alone."""
    alone = domain(Parts(cards=(Card(alias="gpu-board", source=BOARD[0]),))).decode()
    told = lab.cluster.kubectl("exec", "-i", pod, "--", "gpu-launcher", "hook", "--explain", "-", stdin=alone)
    assert told.splitlines()[:2] == [
        f"gpu 'board': {BOARD[0]} (display); in the guest 0000:01:00.0",
        f"gpu 'board': {BOARD[1]} (audio); in the guest 0000:02:00.0",
    ]
    assert f'<alias name="ua-companion-{BOARD[1].replace(":", "-").replace(".", "-")}"/>' in told
