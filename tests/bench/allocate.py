"""Allocate, timed at its client; every answer is checked, since a plugin that answers wrongly looks fast."""

import gc
import random
import time
from collections.abc import Sequence

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.bench.contestant import Serving
from tests.bench.machine import Machine
from tests.bench.process import on_one_core

_BLOCKS = 8
_CALLS = 60  # a block
_LONGEST_BLOCK = 0.5  # seconds: whoever answers slowly is asked less often


def in_turn(plugins: Sequence[Serving], machine: Machine, cards: int) -> list[list[float]]:
    """Seconds of each call for that many cards, for each of the plugins; all of them on this process's core.

    Each is asked for a while in turn with the others, so that a noisy machine is noisy for all of them alike.
    """
    taken: list[list[float]] = [[] for _ in plugins]
    with on_one_core(*(plugin.pid for plugin in plugins)):
        for counted in [False] + [True] * _BLOCKS:
            for plugin, its in zip(plugins, taken, strict=True):
                calls = block(plugin, machine, cards)
                if counted:
                    its += calls
    return taken


def block(plugin: Serving, machine: Machine, cards: int, calls: int = _CALLS) -> list[float]:
    """Seconds of each of at most so many calls in a row."""
    taken: list[float] = []
    device_ids = tuple(machine.nodes)
    stub = plugin.endpoint.stub
    gc.collect()
    gc.disable()
    end = time.perf_counter() + _LONGEST_BLOCK
    try:
        while len(taken) < calls and (not taken or time.perf_counter() < end):
            asked = random.sample(device_ids, cards)
            request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=asked)])
            start = time.perf_counter()
            answer = stub.Allocate(request, timeout=30)
            taken.append(time.perf_counter() - start)
            machine.check(asked, answer)
    finally:
        gc.enable()
    return taken
