"""`kubectl gpuvm why` of twelve VMs that are Pending, with a real API server and scheduler: the user's word, the cards
that it costs, and what would help. The nodes are objects alone."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from launcher.vm.cards.annotations import Word
from tests.clusters import board_of, hgx, machine, node_of, slices_of, snapshot_of, with_board
from tests.lab import build
from tests.lab.control_plane import Cluster
from tests.lab.pods import printed
from tests.lab.waiting import Patience
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(build.kubernetes_minor() < 34, reason="DRA is v1 from Kubernetes 1.34")

_BOARD = replace(board_of(snapshot_of(hgx())), version="580.159.03")
#: Eight A100 on a board with partitions; two RTX 3090 on two NUMA nodes, behind no switch; an RTX 2060, which is taken.
NODES = {"hgx": with_board(snapshot_of(hgx()), _BOARD), "rtx": machine("two-rtx-3090"), "desk": machine("rtx-2060")}
SLICES = {name: slices_of(snapshot, name) for name, snapshot in NODES.items()}
ANY, A100 = "nvidia.com/gpu", "nvidia.com/GA100_A100_SXM4_40GB"
RTX_3090, RTX_2060 = "nvidia.com/GA102_GEFORCE_RTX_3090", "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
FIRST, SECOND = (each["attributes"]["uuid"]["string"] for each in SLICES["rtx"][0]["spec"]["devices"])


NO_CARD = "no card here could be gpu 'gpu0'"
OF_2, OF_8 = "(excludes 2 cards, 2 of them free)", "(excludes 8 cards, 8 of them free)"
OF_ALL = "(excludes 11 cards, 10 of them free)"
ONE_3090, TWO_3090 = (f"rtx then has {count} NVIDIA GeForce RTX 3090" for count in (1, 2))
ONE_A100, TWO_A100 = (f"hgx then has {count} NVIDIA A100-SXM4-40GB" for count in (1, 2))


class Pending(NamedTuple):
    """A VM with so many GPUs of a resource and these annotations. The answer: the nearest node, what is wrong with it,
    and what would help; {0} and {1} are the annotations."""

    resource: str
    gpus: int
    annotations: Mapping[str, str]
    nearest: str
    helps: str


VMS = {
    "no-rtx": Pending(
        RTX_3090, 1, {Word.AVOID_TYPE: "RTX"},
        f"rtx is the nearest: {NO_CARD} (2 excluded by {{0}})", f"leave out {{0}} {OF_2}: {ONE_3090}",
    ),
    "no-place": Pending(
        RTX_3090, 1, {Word.AVOID_ID: f"{FIRST},{SECOND}"},
        f"rtx is the nearest: {NO_CARD} (2 excluded by {{0}})", f"leave out {{0}} {OF_2}: {ONE_3090}",
    ),
    "hopper": Pending(
        ANY, 1, {Word.USE_TYPE: "H100"},
        f"hgx is the nearest: {NO_CARD} (8 excluded by {{0}})", f"leave out {{0}} {OF_ALL}: {ONE_A100}",
    ),
    "in-order": Pending(
        ANY, 1, {Word.FIRST: "H100,L40S"},
        f"hgx is the nearest: {NO_CARD} (8 excluded by {{0}})", f"leave out {{0}} {OF_ALL}: {ONE_A100}",
    ),
    "large": Pending(
        A100, 1, {Word.MEMORY: "80Gi"},
        f"hgx is the nearest: {NO_CARD} (8 excluded by {{0}})", f"leave out {{0}} {OF_8}: {ONE_A100}",
    ),
    "bound": Pending(
        RTX_3090, 2, {Word.NUMA_BIND: "true"},
        "rtx is the nearest: not 2 of the cards that could be had share one NUMA node ({0})",
        f"leave out {{0}}: {TWO_3090}",
    ),
    "switched": Pending(
        RTX_3090, 2, {Word.TOGETHER: "switch"},
        "rtx is the nearest: of no card here that could be had the PCIe switch is known ({0})",
        f"leave out {{0}}: {TWO_3090}",
    ),
    "by-cel": Pending(
        RTX_3090, 1, {Word.SELECT: 'device.driver == "other"'},
        f"rtx is the nearest: {NO_CARD} (2 excluded by {{0}})", f"leave out {{0}} {OF_2}: {ONE_3090}",
    ),
    "several": Pending(
        A100, 2, {},
        f"hgx is the nearest: {NO_CARD} (8 excluded by several GPUs without gpu-launcher.dev/together: nvlink)",
        f"write gpu-launcher.dev/together: nvlink {OF_8}: {TWO_A100}",
    ),
    "driver": Pending(
        A100, 2, {Word.DRIVER: "570.1.2", Word.TOGETHER: "nvlink"},
        f"hgx is the nearest: {NO_CARD} (8 excluded by {{0}})",
        f"give the guest the driver of a node's Fabric Manager, and not {{0}} {OF_8}: {TWO_A100}",
    ),
    "two-words": Pending(
        RTX_3090, 1, {Word.AVOID_TYPE: "3090", Word.MEMORY: "40Gi"},
        f"rtx is the nearest: {NO_CARD} (2 excluded by {{0}})",
        f"leave out {{0}} and leave out {{1}} {OF_2}: {ONE_3090}",
    ),
    "waits": Pending(
        RTX_2060, 1, {},
        f"desk is the nearest: {NO_CARD} (1 taken)",
        "wait for 0000:01:00.0 of desk (claim default/train-gpu-launcher-xxxxx of pod train)",
    ),
}  # fmt: skip


def vm(name: str, resource: str, gpus: int = 1, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of a node that is an object alone the controllers soon say that it is not ready."""
    entries = [{"name": f"gpu{number}", "deviceName": resource} for number in range(gpus)]
    domain = {"memory": {"guest": "256Mi"}, "devices": {"gpus": entries}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"domain": domain, "tolerations": [{"operator": "Exists"}]},
    }


@pytest.fixture(scope="module")
def pending(cluster: Cluster) -> None:
    """All of them wait, and one more VM has the RTX 2060."""
    cluster.kubectl("apply", "-f", str(ROOT / "deploy/dra/deviceclasses.yaml"))
    for name, slices in SLICES.items():
        node = node_of(name, dict.fromkeys((A100, RTX_3090, RTX_2060), "0"))
        cluster.apply({key: value for key, value in node.items() if key != "status"})
        status = json.dumps({"status": node["status"]})
        cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
        for each in slices:
            # A node of another uid: the slice would be deleted.
            cluster.apply({**each, "metadata": {"name": each["metadata"]["name"]}})
    cluster.kubectl("apply", "-f", "-", stdin=printed(vm("train", RTX_2060), "--dra"))

    def is_scheduled(name: str, status: str) -> bool:
        pods = cluster.get_all("pods", "-l", f"vmi.kubevirt.io/id={name}")
        conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
        return any((each["type"], each["status"]) == ("PodScheduled", status) for each in conditions)

    Patience().until("a VM has the RTX 2060", partial(is_scheduled, "train", "True"), 60)
    for name, its in VMS.items():
        document = vm(name, its.resource, its.gpus, its.annotations)
        cluster.kubectl("apply", "-f", "-", stdin=printed(document, "--dra"))
    for name in VMS:
        Patience().until(f"{name} is Pending", partial(is_scheduled, name, "False"), 60)


@pytest.mark.usefixtures("pending")
@pytest.mark.parametrize("name", VMS)
def test_why_says_the_users_word_the_cards_that_it_costs_and_what_would_help(cluster: Cluster, name: str) -> None:
    path = f"/run/lab/kubernetes:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    environ = [f"PATH={path}", f"KUBECONFIG={cluster.argv()[2]}", "HOME=/run/lab", "TMPDIR=/run/lab"]
    done = cluster.box.run("env", *environ, "kubectl-gpuvm", "why", name, seconds=90)
    assert done.returncode == 0, done.stderr
    case = VMS[name]
    said = [f"{word} {text!r}" for word, text in case.annotations.items()]
    answer = re.sub(r"(launcher-)[a-z0-9]{5}( of pod)", r"\1xxxxx\2", done.stdout.splitlines()[0])
    wanted = f"{case.nearest}; {case.helps}".format(*said)
    assert answer == f"default/{name}: is Pending: no node takes it, and {wanted}"
