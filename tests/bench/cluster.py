"""Choosing cards in large clusters: `fit` over 1,000 and 5,000 nodes of eight cards; and, with --scheduler, what the
real API server and scheduler make of HAMi's rules, of all words on random clusters, of classes of other drivers, of
boards with partitions and of 500 VMs, without a node: `python -m tests.bench.cluster`.

The scheduler is the one that the lab has built: `make lab`, once.
"""

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

from launcher.choosing.claim import claim_for
from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import fit_of
from launcher.choosing.obstacles import asking
from launcher.vm.cards.annotations import Selection, read_selection
from pci import slices as words
from plugin.dra.slices import device_name
from plugin.fabric.board import Board
from plugin.fabric.modules import ModuleIDs
from plugin.node.snapshot import Snapshot
from tests.bench.classes import CLASSES, case_of
from tests.bench.control_plane import WRITES, ControlPlane, NotBuilt, running_control_plane, until
from tests.bench.objects import (
    CLASS,
    cards_of,
    claims_of,
    judged,
    node_with,
    slice_of,
    taking,
    template_and_pod,
    without_conditions,
)
from tests.clusters import (
    H100,
    RTX_3090,
    board_of,
    claim_of,
    hgx,
    large,
    node_of,
    slices_of,
    snapshot_of,
    with_board,
)
from tests.fabric import standin
from tests.launcher.choosing.hami import CARDS, ROWS, entries, selection_of, slices_of_cards
from tests.processes import BIN

Object = dict[str, Any]

_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: bench
  annotations: {nvidia.com/use-gputype: h100, gpu-launcher.dev/together: nvlink}
spec:
  domain:
    memory: {guest: 1Gi}
    devices:
      gpus: [{name: gpu1, deviceName: nvidia.com/gpu}, {name: gpu2, deviceName: nvidia.com/gpu}]
"""
_LIMITS = {1000: 1.5, 5000: 6.0}  # seconds, with nothing beside it
_ROOMS = 300  # nodes whose room is asked of the scheduler
_CLUSTERS = 300  # random ones of one node, for the words that choose
_BOARDS = 300  # nodes whose partitions are
#: The scheduler of 1.36, which has lists as an alpha, forgets a list's values when it has tried a device in vain.
_LISTS = 37


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scheduler", action="store_true", help="also ask Kubernetes itself")
    arguments.add_argument("--kubernetes", help="of another version than the lab's own: 1.37")
    arguments.add_argument("--nodes", type=int, default=1000, help="of the cluster that it schedules on")
    arguments.add_argument("--vms", type=int, default=500)
    arguments.add_argument("--idle", type=float, default=600, help="seconds in which nobody should write")
    given = arguments.parse_args()
    for nodes, limit in _LIMITS.items():
        _fit(nodes, limit)
    if given.scheduler:
        try:
            with running_control_plane(given.kubernetes) as plane:
                plane.create([CLASS])
                _hami(plane)
                _room(plane, _ROOMS)
                _wants(plane, _CLUSTERS)
                _classes(plane, _CLUSTERS)
                _boards(plane, _BOARDS)
            with running_control_plane(given.kubernetes) as plane:
                plane.create([CLASS])
                _place(plane, given.nodes, given.vms, given.idle)
        except NotBuilt as error:
            raise SystemExit(str(error)) from error


def _fit(nodes: int, limit: float) -> None:
    """One process, exec to exit, as a user has it."""
    with tempfile.TemporaryDirectory() as directory:
        vm, slices = Path(directory) / "vm.yaml", Path(directory) / "slices.json"
        vm.write_text(_VM)
        listed = {"apiVersion": "v1", "kind": "List", "items": list(large(nodes))}
        slices.write_text(json.dumps(listed, indent=4))
        megabytes = slices.stat().st_size / 1e6
        wall, cpu = _timed(vm, slices)
        print(f"fit, {nodes} nodes, {megabytes:.0f} MB of JSON: {wall:.1f} s, {cpu:.1f} s of CPU (at most {limit} s)")
        if nodes == min(_LIMITS):
            text = slices.with_suffix(".yaml")
            text.write_text(yaml.dump(listed, Dumper=yaml.CSafeDumper))
            wall, cpu = _timed(vm, text)
            print(f"fit, {nodes} nodes, as YAML: {wall:.1f} s, {cpu:.1f} s of CPU")


def _timed(vm: Path, slices: Path) -> tuple[float, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [BIN / "gpu-launcher", "fit", vm, "--cluster", slices]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _hami(plane: ControlPlane) -> None:
    """A pod for each of HAMi's rules and each node of its table, which may go to that node alone: the scheduler places
    it where the table says, on the cards that `fit` names."""
    wanted: dict[str, tuple[str, str, bool, list[str]]] = {}
    objects: list[Object] = []
    for number, row in enumerate(ROWS):
        nodes = {f"{node}-{number}": cards for node, cards in CARDS.items()}
        slices = slices_of_cards(nodes)
        placements = fit_of(
            "bench", None, entries(row.cards_wanted), selection_of(row), (), cluster_of(slices)
        ).placements
        claim = claim_for(entries(row.cards_wanted), selection_of(row))
        assert claim is not None
        objects += [*map(node_with, nodes), *slices]
        for placement in placements:
            name = f"pod-{placement.node}"
            objects += template_and_pod(name, claim.spec(), {"kubernetes.io/hostname": placement.node})
            cards = [device.id.name for device in placement.devices or ()]
            wanted[name] = (str(row), placement.node, placement.node.rpartition("-")[0] in row.nodes, cards)
    plane.create(each for each in objects if each["kind"] != "Pod")
    plane.create(each for each in objects if each["kind"] == "Pod")
    pods, claims = judged(plane, wanted, 180), claims_of(plane)
    differing = 0
    for name, (rule, node, is_placed, cards) in wanted.items():
        found = cards_of(pods[name], claims)
        if (pods[name]["spec"].get("nodeName") == node, found) != (is_placed, cards):
            differing += 1
            print(f"  {rule} on {node}: expected {cards if is_placed else 'no'}, and the scheduler has {found}")
    print(f"HAMi's rules by the scheduler: {len(ROWS)} rows, {len(wanted)} answers, {differing} that differ from fit's")


def _room(plane: ControlPlane, number: int) -> None:
    """Nodes of all kinds with pods on them, and for each a pod that may go to that node alone: the scheduler places it
    where `fit` says, and nowhere else."""
    random = Random(31)
    cases = [_case(random, f"room-{each}") for each in range(number)]
    objects = [each for node, there, _ in cases for each in (node, *there)]
    plane.create(each for each in objects if each["kind"] == "Node")
    plane.create(each for each in objects if each["kind"] == "Pod")
    time.sleep(2)  # until the scheduler knows them
    plane.create(wanting for *_, wanting in cases)
    names = {wanting["metadata"]["name"] for *_, wanting in cases}

    placed = {name: pod["spec"].get("nodeName") for name, pod in judged(plane, names, 180).items()}
    differing = fitting = 0
    for node, there, wanting in cases:
        pod = asking(wanting)
        found = fit_of("bench", None, (), read_selection({}), (), cluster_of([node, *there]), dra=False, pod=pod)
        fitting += bool(found.fitting)
        if bool(found.fitting) != (placed[wanting["metadata"]["name"]] is not None):
            differing += 1
            print(
                f"  the scheduler has {placed[wanting['metadata']['name']]}: {found.obstacles}\n  {wanting}\n  {there}"
            )
    print(f"Room on nodes by the scheduler: {number} answers, {fitting} of them that it fits, {differing} that differ")


def _wants(plane: ControlPlane, number: int) -> None:
    """Nodes of random cards, some tainted, cordoned by a rule or taken, and for each a pod that may go to that node
    alone, with a claim of random annotations: the scheduler gives the cards that `fit` names."""
    random = Random(33)
    objects: list[Object] = []
    wanted: dict[str, tuple[Selection, list[Object], list[str] | None]] = {}
    for each in range(number):
        name = f"wants-{each}"
        there, selection, count = _cards_and_wish(random, name)
        claim = claim_for(entries(count), selection)
        assert claim is not None
        (placement,) = fit_of("bench", None, entries(count), selection, (), cluster_of(there)).placements
        cards = None if placement.devices is None else [device.id.name for device in placement.devices]
        wanted[f"pod-{name}"] = (selection, there, cards)
        objects += [
            node_with(name),
            *there,
            *template_and_pod(f"pod-{name}", claim.spec(), {"kubernetes.io/hostname": name}),
        ]
    for kinds in (("Node", "ResourceSlice", "DeviceTaintRule", "ResourceClaimTemplate", "ResourceClaim"), ("Pod",)):
        plane.create(each for each in objects if each["kind"] in kinds)
        time.sleep(2)  # until the scheduler knows them

    pods, claims = judged(plane, wanted, 300), claims_of(plane)
    differing = 0
    for name, pod in pods.items():
        selection, there, cards = wanted[name]
        found = cards_of(pod, claims) if pod["spec"].get("nodeName") else None
        if found != cards:
            differing += 1
            print(f"  {selection.written}: fit has {cards}, the scheduler {found}: {json.dumps(there)}")
    fitting = sum(cards is not None for *_, cards in wanted.values())
    print(
        f"All words by the scheduler: {number} clusters, {fitting} of them that fit, {differing} that differ from fit's"
    )


def _classes(plane: ControlPlane, number: int) -> None:
    """Nodes with devices of two drivers, and for each a pod that may go to that node alone, with claims of several
    classes and resources that classes serve: the scheduler gives the devices that `fit` names."""
    random = Random(35)
    plane.create(CLASSES)
    classes = plane.every("DeviceClass")
    cases = [case_of(random, f"classes-{each}", classes, lists=plane.minor >= _LISTS) for each in range(number)]
    plane.create(each for case in cases for each in (case.node, *case.objects))
    time.sleep(2)  # until the scheduler knows them
    plane.create(case.pod for case in cases)
    wanted = {case.pod["metadata"]["name"]: case for case in cases}

    pods, claims = judged(plane, wanted, 300), claims_of(plane)
    differing = 0
    for name, pod in pods.items():
        case = wanted[name]
        cards = cards_of(pod, claims) if pod["spec"].get("nodeName") else None
        if cards != case.cards:
            differing += 1
            why = [each.get("message") for each in pod["status"].get("conditions", ())]
            print(f"  fit has {case.cards}, the scheduler {cards}: {json.dumps(case[:3])}: {why}")
    fitting = sum(case.cards is not None for case in cases)
    print(
        f"Classes by the scheduler: {number} clusters, {fitting} of them that fit, {differing} that differ from fit's"
    )


def _cards_and_wish(random: Random, node: str) -> tuple[list[Object], Selection, int]:
    """A node's slice with rules and a claim of some cards; what a VM of so many GPUs wants of it."""
    models = random.sample([("H100 PCIe", 80), ("A100 SXM4 40GB", 40), ("A100 SXM4 80GB", 80), ("L40S", 48)], 2)
    devices: list[Object] = []
    for number in range(random.randint(2, 8)):
        model, memory = random.choice(models)
        attributes: Object = {
            "type": {"string": "card"},
            "vendor": {"string": "10de"},
            "productName": {"string": f"NVIDIA {model}"},
            "uuid": {"string": words.place_uuid(node, str(number), "10de:2204")},
            "nvmlUUID": {"string": f"GPU-{words.place_uuid(node, str(number), 'nvml')}"},
            "switch": {"string": f"0000:{number // 2:02x}:00.0"},
            words.NUMA_NODE: {"int": number // 4},
            words.PCIE_ROOT: {"string": f"pci0000:{number // 4:02x}"},
        }
        for name in ("switch", words.NUMA_NODE, "nvmlUUID"):
            if random.random() < 0.1:
                del attributes[name]
        device: Object = {"name": f"card-{number}", "attributes": attributes}
        if random.random() < 0.9:
            device["capacity"] = {"memory": {"value": random.choice([f"{memory}Gi", str(memory << 30)])}}
        if random.random() < 0.1:
            taint = {"key": words.UNHEALTHY, "effect": random.choice(["NoSchedule", "NoExecute", "None"])}
            device["taints"] = [taint]
        devices.append(device)
    if random.random() < 0.4:
        _make_a_board(devices)
    there = [slice_of(node, devices)]
    if random.random() < 0.4:
        selector = {"driver": words.DRIVER, "pool": node, "device": random.choice(devices)["name"]}
        taint = {"key": "example.com/repair", "effect": random.choice(["NoSchedule", "NoExecute", "None"])}
        there.append(
            {
                "apiVersion": "resource.k8s.io/v1beta2",
                "kind": "DeviceTaintRule",
                "metadata": {"name": node},
                "spec": {"deviceSelector": selector, "taint": taint},
            }
        )
    if random.random() < 0.5:
        there.append(taking(f"taken-{node}", node, random.sample([each["name"] for each in devices], 1)[0]))
    return there, read_selection(_annotations(random, devices)), random.choice([1, 1, 2, 2, 3, 4])


def _make_a_board(devices: list[Object]) -> None:
    """Partitions as on a board with NVSwitches: pairs, and fours."""
    for number, device in enumerate(devices):
        device["attributes"] |= {
            words.MODULE_ID: {"int": number + 1},
            f"{words.PARTITION}1": {"int": number},
            f"{words.PARTITION}2": {"int": 10 + number // 2},
            f"{words.PARTITION}4": {"int": 20 + number // 4},
        }


def _annotations(random: Random, devices: list[Object]) -> Mapping[str, str]:
    uuids = [
        value for each in devices for key in ("uuid", "nvmlUUID") for value in each["attributes"].get(key, {}).values()
    ]
    said = {
        "nvidia.com/use-gputype": random.choice(["A100", "h100,l40s", "A100-SXM4", "80GB"]),
        "nvidia.com/nouse-gputype": random.choice(["L40S", "A100 SXM4 40GB"]),
        "nvidia.com/use-gpuuuid": ",".join(random.sample(uuids, 2)),
        "nvidia.com/nouse-gpuuuid": random.choice(uuids),
        "nvidia.com/numa-bind": "true",
        "gpu-launcher.dev/memory-at-least": random.choice(["40Gi", "48Gi", "64G", "80Gi", "96Gi"]),
        "gpu-launcher.dev/first-available": random.choice(["H100,A100", "L40S,A100 SXM4 80GB,H100", "L40S"]),
        "gpu-launcher.dev/together": random.choice(["node", "root", "switch", "nvlink"]),
        "gpu-launcher.dev/select": random.choice(
            [
                f'device.capacity["{words.DRIVER}"].?memory.orValue(quantity("0")).isGreaterThan(quantity("40Gi"))',
                f'device.attributes["{words.DRIVER}"].productName.contains("100")',
            ]
        ),
    }
    return {name: said[name] for name in random.sample(sorted(said), random.choice([0, 1, 1, 2, 3]))}


def _case(random: Random, name: str) -> tuple[Object, list[Object], Object]:
    def container(of: str, most: int, **more: str) -> Object:
        amounts = {"cpu": f"{random.randint(1, most)}00m", "memory": f"{random.randint(1, most)}00Mi"}
        if random.random() < 0.3:
            amounts[RTX_3090] = str(random.randint(1, 2))
        return {"name": of, "image": "none", "resources": {"requests": amounts, "limits": amounts}, **more}

    def pod(of: str, most: int, **spec: Any) -> Object:
        first = [container("side", 3, restartPolicy="Always")] if random.random() < 0.3 else []
        first += [container("init", most)] if random.random() < 0.3 else []
        its = {"containers": [container("main", most)], "initContainers": first, **spec}
        if random.random() < 0.1:
            its["resources"] = {"requests": {"cpu": "1500m", "memory": "1200Mi"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": of, "namespace": "default"}, "spec": its}

    offers = {
        "cpu": str(random.randint(1, 4)),
        "memory": f"{random.randint(1, 4)}Gi",
        "pods": str(random.randint(2, 4)),
    }
    offers |= {RTX_3090: str(random.randint(0, 4))}
    effects = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
    taints = [{"key": "gpu", "value": "yes", "effect": random.choice(effects)}] if random.random() < 0.3 else []
    labels = {"kubernetes.io/hostname": name, **({"rack": random.choice("123")} if random.random() < 0.7 else {})}
    node = node_of(name, offers, labels=labels, taints=taints, cordoned=random.random() < 0.1)
    there = [pod(f"{name}-{number}", 8, nodeName=name) for number in range(random.randint(0, 3))]
    for each in there:
        each["status"] = {"phase": random.choice(["Running", "Running", "Succeeded"])}
    operators = [
        ("In", ["1", "2"]),
        ("NotIn", ["1"]),
        ("Exists", []),
        ("DoesNotExist", []),
        ("Gt", ["1"]),
        ("Lt", ["3"]),
    ]
    operator, values = random.choice(operators)
    term = {"matchExpressions": [{"key": "rack", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    tolerations = [{"operator": "Exists"}, {"key": "gpu", "value": random.choice(["yes", "no"])}]
    spec: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": name}}
    if random.random() < 0.5:
        spec["affinity"] = {"nodeAffinity": required}
    return node, there, pod(f"{name}-wanting", 8, **spec, tolerations=random.sample(tolerations, random.randint(0, 1)))


def _boards(plane: ControlPlane, number: int) -> None:
    """Boards with NVSwitches, some of whose cards are taken, tainted or of unknown module, and for each a pod that may
    go to that node alone: the scheduler gives it the cards that `fit` names, which gpu-plugin can activate."""
    random = Random(33)
    cases = [_board(random, f"board-{each}") for each in range(number)]
    plane.create(each for case in cases for each in (node_with(case.node), *map(without_conditions, case.objects)))
    time.sleep(2)  # until the scheduler knows them
    pods = {
        case.node: [*template_and_pod(case.node, case.claim, {"kubernetes.io/hostname": case.node})] for case in cases
    }
    for kind in (0, 1):
        plane.create(objects[kind] for objects in pods.values())

    placed, claims = judged(plane, pods, 600), claims_of(plane)
    fitting = differing = 0
    for case in cases:
        cards = cards_of(placed[case.node], claims)
        fitting += bool(case.cards)
        if cards != case.cards:
            differing += 1
            print(f"  {case}: the scheduler has {cards}")
        case.board.partition([card for card in case.snapshot.inventory.published if device_name(card) in cards])
    print(f"Partitions by the scheduler: {number} answers, {fitting} of them that it fits, {differing} that differ")


class _Case(NamedTuple):
    node: str
    snapshot: Snapshot
    board: Board
    objects: list[Object]
    claim: Mapping[str, Any]
    cards: list[str]


def _board(random: Random, name: str) -> _Case:
    """A node and a VM's claim; `cards` are those that fit names."""
    snapshot, board = random.choice(_kinds())
    modules: set[int] = set()
    for each in random.sample(board.table.partitions, random.randint(0, 5)):
        if len(each.modules) < 8 and modules.isdisjoint(each.modules):
            modules.update(each.modules)
    others = [each.id for each in board.table.partitions if modules.isdisjoint(each.modules)]
    strange = [random.choice(others)] if others and random.random() < 0.2 else []
    taken = [card for card in snapshot.inventory.published if board.modules(card) & modules]
    if random.random() < 0.2:
        board = replace(board, ids=ModuleIDs(dict(random.sample(list(board.ids.by_address.items()), 7))))
    seen = replace(with_board(snapshot, board, *strange), claimed=dict.fromkeys((card.id for card in taken), "a/vm"))
    # The slices may be of before the others were prepared.
    objects = slices_of(random.choice([seen, replace(seen, claimed={})]), name)
    if taken:
        held = claim_of(f"{name}-held", [(name, device_name(card)) for card in taken])
        for request in held["spec"]["devices"]["requests"]:
            request["exactly"] = {"deviceClassName": "gpu-launcher.dev"}
        objects.append(held)
    selection = read_selection({"gpu-launcher.dev/together": "nvlink"} if random.random() < 0.8 else {})
    its = entries(random.choice([1, 2, 2, 3, 4, 4, 8]))
    claim = claim_for(its, selection)
    assert claim is not None
    (placement,) = fit_of("bench", None, its, selection, (), cluster_of(objects)).placements
    return _Case(name, seen, board, objects, claim.spec(), [each.id.name for each in placement.devices or ()])


@cache
def _kinds() -> list[tuple[Snapshot, Board]]:
    snapshot = snapshot_of(hgx(H100))
    return [(snapshot, board_of(snapshot, of)) for of in (standin.H100, standin.B200, standin.A100_16)]


def _place(plane: ControlPlane, nodes: int, vms: int, idle: float) -> None:
    """VMs of two cards with NVLink, on nodes of eight cards."""
    slices = [without_conditions(each) for each in large(nodes) if each["kind"] == "ResourceSlice"]
    plane.create([*map(node_with, sorted({each["spec"]["nodeName"] for each in slices})), *slices])
    text = {"nvidia.com/use-gputype": "h100", "gpu-launcher.dev/together": "nvlink"}
    claim = claim_for(entries(2), read_selection(text))
    assert claim is not None
    # Whoever waits here lists pods; nobody else does, but by a watch.
    before = plane.requests("GET", *WRITES)
    started = time.monotonic()
    plane.create(each for number in range(vms) for each in template_and_pod(f"vm-{number}", claim.spec(), {}))
    until("all are placed", lambda: all(pod["spec"].get("nodeName") for pod in plane.every("Pod")), 3600, 1)
    seconds = time.monotonic() - started
    made = plane.requests("GET", *WRITES) - before
    of = ", ".join(f"{resource} {number / vms:.1f}" for resource, number in made.most_common(6))
    print(f"{vms} VMs of two cards on {nodes} nodes: all placed in {seconds:.0f} s, API requests for each VM: {of}")
    time.sleep(10)  # what follows a placement
    writes = plane.requests(*WRITES)
    time.sleep(idle)
    # The API server's own lease, and the controllers', are no node's.
    since = {name: number for name, number in (plane.requests(*WRITES) - writes).items() if name != "leases"}
    print(f"{idle:.0f} idle seconds: {sum(since.values())} writes of {nodes} nodes {since or ''}")


if __name__ == "__main__":
    main()
