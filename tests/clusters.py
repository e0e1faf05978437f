"""Clusters that nobody here has: the ResourceSlices of nodes with composed machines, and claims of their devices."""

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pci.address import PCIAddress
from plugin.cards.config import Config, Fabric, Serve
from plugin.cards.names import read_pci_ids
from plugin.cards.nodes import read_nodes
from plugin.dra.slices import OwningNode, slices
from plugin.fabric.board import Board
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Partition, Table
from plugin.fabric.status import FabricStatus
from plugin.node.snapshot import Snapshot
from tests import snapshots
from tests.compose import MACHINES, Function, compose, hgx_a100
from tests.fabric.standin import H100 as H100_TABLE
from tests.fabric.standin import Sets
from tests.kernel import make_nodes
from tests.processes import FIXTURES, ROOT

Object = dict[str, Any]

_NODES = uuid.UUID("c6b3e9a0-5df3-5a8e-9b0e-6f0d2a1b3c4d")
H100 = "10de:2331"


@cache
def snapshot_of(functions: tuple[Function, ...], config: Config | None = None) -> Snapshot:
    """What the plugin sees on a machine with these functions, all device nodes that it ought to have among it."""
    with tempfile.TemporaryDirectory() as directory:
        sys, dev = Path(directory) / "sys", Path(directory) / "dev"
        compose(sys, functions)
        make_nodes(sys, dev)
        names = read_pci_ids(FIXTURES / "pci.ids")
        return snapshots.snapshot_of(sys, names, config or Config(serve=Serve.DRA), nodes=read_nodes(dev))


def hgx(model: str = "10de:20b0") -> tuple[Function, ...]:
    """Eight GPUs of a model, two behind each of four switches, each on a NUMA node of its own."""
    return tuple(replace(each, id=model) if each.id == "10de:20b0" else each for each in hgx_a100())


def board_of(snapshot: Snapshot, of: tuple[int, Sets] = H100_TABLE) -> Board:
    """The partitions of a snapshot's cards, whose module IDs are in the order of their addresses."""
    first, sets = of
    addresses = [PCIAddress.parse(device.id) for device in snapshot.inventory.published]
    ids = ModuleIDs({address: module for module, address in enumerate(addresses, start=1)})
    return Board(Table(tuple(Partition(number, each) for number, each in enumerate(sets, start=first))), ids)


def with_board(snapshot: Snapshot, board: Board, *active: int) -> Snapshot:
    """The node as its Fabric Manager has it: with `active`, partitions that nobody knows the owners of."""
    table = board.table
    for partition in active:
        table = table.with_state(partition, is_active=True)
    config = replace(snapshot.config, fabric=Fabric())
    return replace(snapshot, config=config, partitions=FabricStatus(replace(board, table=table)))


def slices_of(snapshot: Snapshot, node: str) -> list[Object]:
    """The node's ResourceSlices as the API server has them."""
    return slices(snapshot, OwningNode(node, str(uuid.uuid5(_NODES, node))))


def machine(name: str) -> Snapshot:
    """A machine of tests/compose.py."""
    return snapshot_of(MACHINES[name])


def claim_of(
    name: str, devices: Iterable[tuple[str, str]], pod: str | None = None, namespace: str = "default"
) -> Object:
    """A ResourceClaim to which these devices are allocated: the pool, which is the node, and the device's name."""
    results = [
        {"request": f"gpu-{number}", "driver": "gpu-launcher.dev", "pool": pool, "device": device}
        for number, (pool, device) in enumerate(devices)
    ]
    reserved = [{"resource": "pods", "name": pod, "uid": str(uuid.uuid5(_NODES, pod))}] if pod is not None else []
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": result["request"]} for result in results]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


def large(nodes: int) -> Iterator[Object]:
    """Nodes of eight cards, A100 and H100 in turn, the latter with the partitions of a Fabric Manager; of every node's
    cards, three are taken by VMs of two and one."""
    h100 = snapshot_of(hgx(H100))
    kinds = (snapshot_of(hgx()), with_board(h100, board_of(h100)))
    for number in range(nodes):
        node = f"node-{number:04}"
        its = slices_of(kinds[number % 2], node)
        yield from its
        names = [device["name"] for each in its for device in each["spec"]["devices"]]
        yield claim_of(f"two-{number}", [(node, names[0]), (node, names[1])], f"two-{number}")
        yield claim_of(f"one-{number}", [(node, names[2])], f"one-{number}")


RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
KVM = "devices.gpu-launcher.dev/kvm"


def node_of(
    name: str,
    offers: Mapping[str, str] | None = None,
    *,
    labels: Object | None = None,
    taints: Sequence[Object] = (),
    cordoned: bool = False,
    capacity: Object | None = None,
) -> Object:
    """A Node with 4 cards, 16 CPUs and 32 GiB of memory, unless `offers` says otherwise."""
    allocatable = {
        "cpu": "16", "memory": "32Gi", "ephemeral-storage": "100Gi", "hugepages-1Gi": "0", "pods": "110", KVM: "110",
        RTX_3090: "4", **(offers or {}),
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/arch": "amd64", **(labels or {})}},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"capacity": {**allocatable, **(capacity or {})}, "allocatable": allocatable},
    }


def pod_on(
    node: str | None,
    name: str,
    requests: Mapping[str, str] | None = None,
    *,
    phase: str = "Running",
    spec: Object | None = None,
) -> Object:
    """A pod of the namespace ml, on a node or without one."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": dict(requests or {})}}],
            **({"nodeName": node} if node is not None else {}),
            **(spec or {}),
        },
        "status": {"phase": phase},
    }


def card_and_cpus() -> tuple[dict[str, Any], dict[str, Any]]:
    """docs/choosing.md's claim of a card and CPUs, and the VM's part."""
    _, page = (ROOT / "docs" / "choosing.md").read_text().split("### A card and CPUs in one claim\n")
    template, vm = yaml.safe_load_all(page.partition("\n    ")[2].partition("\n\n`count`")[0].replace("\n    ", "\n"))
    return template, vm
