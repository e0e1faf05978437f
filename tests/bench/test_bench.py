"""The bench compares like with like: both plugins answer the same, and rightly; and what is reached is reached."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.bench import allocate, convert, launch
from tests.bench.contestant import Contestant, floor, gpu_plugin, serving
from tests.bench.machine import VARIABLE, Machine, build
from tests.bench.process import cpu_seconds, proportional_set_size
from tests.bench.table import Beside, alone, beside, percentile, table, within_times

BOTH = ("0000:01:00.0", "0000:02:00.0")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return build(tmp_path, cards=2, others=20)


@pytest.mark.parametrize("contestant", [gpu_plugin, floor])
def test_the_plugin_and_the_floor_answer_alike(contestant: Contestant, machine: Machine) -> None:
    with serving(contestant, machine) as plugin:
        assert len(allocate.block(plugin, machine, 1, calls=3)) == 3
        assert all(allocate.in_turn([plugin], machine, 2))
        assert proportional_set_size(plugin.pid) > 1e6
        assert 0 < plugin.cpu < cpu_seconds(plugin.pid)


def answer(*device_ids: str, nodes: tuple[str, ...], permissions: str = "rw") -> api.AllocateResponse:
    devices = [api.DeviceSpec(container_path=node, host_path=node, permissions=permissions) for node in nodes]
    container = api.ContainerAllocateResponse(envs={VARIABLE: ",".join(device_ids)}, devices=devices)
    return api.AllocateResponse(container_responses=[container])


def test_an_answer_with_both_cards_and_each_node_once_is_right(machine: Machine) -> None:
    nodes = tuple({node: None for card in BOTH for node in machine.nodes[card]})
    assert len(nodes) == 8  # /dev/vfio/vfio, /dev/iommu, two groups, four functions
    machine.check(BOTH[::-1], answer(*BOTH, nodes=nodes))


@pytest.mark.parametrize(
    ("addresses", "change", "permissions"),
    [
        (BOTH, lambda nodes: nodes, "rw"),
        (BOTH[:1], lambda nodes: nodes[1:], "rw"),
        (BOTH[:1], lambda nodes: (*nodes, nodes[0]), "rw"),
        (BOTH[:1], lambda nodes: nodes, "mrw"),
    ],
    ids=["one address too many", "a node too few", "a node twice", "permissions too many"],
)
def test_a_wrong_answer_is_no_fast_answer(
    addresses: tuple[str, ...], change: Callable[[tuple[str, ...]], tuple[str, ...]], permissions: str, machine: Machine
) -> None:
    nodes = change(machine.nodes[BOTH[0]])
    with pytest.raises(AssertionError):
        machine.check(BOTH[:1], answer(*addresses, nodes=nodes, permissions=permissions))


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile(range(1, 101), percent) for percent in (50, 99, 100)] == [50, 99, 100]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0


def test_ratios_are_of_the_runs_and_not_of_the_medians() -> None:
    values = Beside([10, 20, 300], [10, 10, 100])
    line = within_times("", values, "ms", 2)
    assert (line.ours, line.floor, line.ratio, line.reached) == ("20.0 ms", "10.0 ms", "2.00x", True)
    assert not within_times("", values, "ms", 1.9).reached


def test_only_a_ratio_has_a_verdict() -> None:
    lines = [
        within_times("reached", Beside([1.0], [1.0]), "ms", 1),
        within_times("not reached", Beside([2.0], [1.0]), "ms", 1),
        beside("beside nothing", Beside([1.0], [0.0]), "ms"),
        alone("alone", [1.0], "ms", 50),
    ]
    assert [line.split()[-1] for line in table(lines).splitlines()[1:]] == ["yes", "NO", "ms", "ms"]


def test_the_launcher_and_the_floor_run_the_same_guest_and_leave_nothing() -> None:
    with launch.places() as both:
        for place in both:
            with place.launched() as launcher:
                assert len(launcher.processes()) == 2, "a supervisor and a worker"
                assert 1e7 < launcher.memory() < 1e8
                assert 0 < launcher.seconds < 60
            (stopped,) = place.stopped
            assert stopped < 60


def test_what_never_comes_is_said() -> None:
    assert alone("", [1, 2, math.inf], "ms", 50, 100).ours == "p50 2.0 ms, max never"


def test_the_conversion_that_is_timed_converts(capsys: pytest.CaptureFixture[str]) -> None:
    convert.ours(rounds=2)
    rounds = json.loads(capsys.readouterr().out)
    assert len(rounds) == 2
    assert min(rounds) > 0
