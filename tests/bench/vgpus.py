"""What the real scheduler makes of vGPUs that are made when claimed: random mixes of pods on nodes of two cards. What
is placed can be made on the cards of tests.vgpu_kernel, and what has to wait could not be made beside it:
`python -m tests.bench.vgpus`. The scheduler is the one that the lab has built: `make lab`, once."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pci.slices import DRIVER, of_resource
from plugin.cards.config import Config, Serve
from plugin.cards.names import read_pci_ids
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.cards.vgpu_types import plain
from plugin.dra.slices import OwningNode, slices
from plugin.node.look import NodeDirectories, look
from tests.bench.control_plane import ControlPlane, NotBuilt, running_control_plane
from tests.bench.objects import CLASS, cards_of, claims_of, judged, node_with, template_and_pod, without_conditions
from tests.processes import FIXTURES
from tests.snapshots import look_at
from tests.vgpu_kernel import L40S, Card, Kernel, l40s

_CARDS = (l40s(0x41), l40s(0x61))
_MOST = {plain(name): most for name, _, most in L40S.values()}
_NUMBERS = {plain(name): number for number, (name, *_) in L40S.items()}


class Mix(NamedTuple):
    """A node; whether its cards take several sizes; its slices; the types that each pod wants, by the pod's name."""

    name: str
    mixed: bool
    kernel: Kernel
    slices: list[dict[str, Any]]
    wanted: dict[str, list[str]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mixes", type=int, default=200)
    mixes = arguments.parse_args().mixes
    try:
        with tempfile.TemporaryDirectory() as directory, running_control_plane() as plane:
            version = plane.ask("GET", "/version")["gitVersion"]
            plane.create([CLASS])
            print(f"vGPUs by the scheduler of {version}: {_mixes(plane, Path(directory), mixes)}")
    except NotBuilt as error:
        raise SystemExit(str(error)) from error


def _mixes(plane: ControlPlane, directory: Path, number: int) -> str:
    random = Random(58)
    mixes = [_mix(random, directory, f"mix-{each}") for each in range(number)]
    plane.create(each for mix in mixes for each in (node_with(mix.name), *map(without_conditions, mix.slices)))
    stored = {each["metadata"]["name"]: each for each in plane.every("ResourceSlice")}
    for each in (each for mix in mixes for each in mix.slices):
        assert _counters(stored[each["metadata"]["name"]]) == _counters(each), "the API server dropped counters"
    time.sleep(2)  # until the scheduler knows them
    pods = [each for mix in mixes for name, types in mix.wanted.items() for each in _asking(mix.name, name, types)]
    for kind in ("ResourceClaimTemplate", "Pod"):
        plane.create(each for each in pods if each["kind"] == kind)
    placed = judged(plane, [name for mix in mixes for name in mix.wanted], 600, 1)
    claims = claims_of(plane)
    one_size = _counted([mix for mix in mixes if not mix.mixed], placed, claims)
    return f"cards of one size: {one_size}; of several: {_counted([mix for mix in mixes if mix.mixed], placed, claims)}"


def _counted(mixes: list[Mix], placed: dict[str, Any], claims: dict[str, Any]) -> str:
    made = waiting = impossible = possible = 0
    for mix in mixes:
        for name in mix.wanted:
            if placed[name]["spec"].get("nodeName"):
                for device in cards_of(placed[name], claims):
                    made += 1
                    impossible += not _made(mix.kernel, device)
        for name, types in mix.wanted.items():
            if not placed[name]["spec"].get("nodeName"):
                waiting += 1
                possible += _could_be_made(mix.kernel, types)
    count = sum(len(mix.wanted) for mix in mixes)
    return (
        f"{len(mixes)} mixes, {count} pods, {made} vGPUs placed, {impossible} of which cannot be made, "
        f"{waiting} pods wait, {possible} of which could have theirs"
    )


def _mix(random: Random, directory: Path, name: str) -> Mix:
    (directory / name).mkdir()
    kernel = Kernel(directory / name, *_CARDS)
    mixed = random.random() < 0.4
    for card in _CARDS:
        kernel.on(card)
        if mixed:
            kernel.nvidia_smi(["vgpu", "-shm", "1", "-i", card.address])
    types = {one: _MOST[one] for one in random.sample(sorted(_MOST), random.randint(1, len(_MOST)))}
    rule = VGPURule(vendor="10de", types=types, mixed_sizes=mixed, when=When.CLAIMED)
    names = read_pci_ids(FIXTURES / "pci.ids")
    config = Config(serve=Serve.DRA, vgpus=(rule,))
    before = look_at(kernel.sys, names, config, state=kernel.state, proc=kernel.proc)
    for card in _CARDS:
        for number in range(1, random.choice([0, 0, 0, 1, 2]) + 1):  # somebody else's
            if creatable := kernel.creatable(card):
                kernel.write_type(card.function(number), random.choice(creatable))
    # The plugin has run since before, so it knows the names of the types that no list has now.
    places = NodeDirectories(sys=kernel.sys, dev=None, proc=kernel.proc, state=kernel.state)
    seen = asyncio.run(look(places, names, config, _ask, lambda: before))
    wanted = {
        f"{name}-{number}": random.choices(sorted(types), k=random.choice([1, 1, 1, 2, 3]))
        for number in range(random.randint(2, 6))
    }
    return Mix(name, mixed, kernel, slices(seen, OwningNode(name, "0b6f3c3e-0000-4000-8000-000000000001")), wanted)


async def _ask(read: Any, *arguments: Any, **named: Any) -> Any:
    return read(*arguments, **named)


def _asking(node: str, name: str, types: list[str]) -> Iterator[dict[str, Any]]:
    requests = [
        {
            "name": f"gpu-{number}",
            "exactly": {
                "deviceClassName": DRIVER,
                "selectors": [
                    {"cel": {"expression": f"{of_resource(f'nvidia.com/NVIDIA_{one}')} && {_IS_CLAIMABLE}"}},
                ],
            },
        }
        for number, one in enumerate(types)
    ]
    return template_and_pod(name, {"devices": {"requests": requests}}, {"kubernetes.io/hostname": node})


_IS_CLAIMABLE = f'device.attributes["{DRIVER}"].type == "vgpu"'


def _counters(each: dict[str, Any]) -> tuple[Any, list[Any]]:
    spec = each["spec"]
    return spec.get("sharedCounters"), [device.get("consumesCounters") for device in spec.get("devices") or ()]


def _made(kernel: Kernel, device: str) -> bool:
    """Whether the device of this name, `vgpu-0000-41-00-0-l40s-24q-0`, is made on its card."""
    card = next(one for one in _CARDS if f"-{one.bus:02x}-" in device)
    name = next(one for one in _MOST if f"-{one.lower()}-" in device)
    return _become(kernel, card, name) is not None


def _become(kernel: Kernel, card: Card, name: str) -> str | None:
    free = [one for one in card.functions if one not in kernel.types(card)]
    if not free or _NUMBERS[name] not in kernel.creatable(card):
        return None
    kernel.write_type(free[0], _NUMBERS[name])
    return free[0]


def _could_be_made(kernel: Kernel, types: list[str]) -> bool:
    for cards in product(_CARDS, repeat=len(types)):
        made = [_become(kernel, card, name) for card, name in zip(cards, types, strict=True)]
        for function in filter(None, made):
            kernel.write_type(function, 0)
        if all(made):
            return True
    return False


if __name__ == "__main__":
    main()
