"""What the threads share of a VM: nobody waits for anybody."""

import threading
from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from launcher.errors import Refusal
from launcher.running.vm import VM, Identity, Phase, StopRequested


@pytest.fixture
def vm() -> VM:
    return VM(Identity("default", "vm", "b1f0bb32"))


@pytest.fixture
def domain() -> Iterator[Any]:
    connection = libvirt.open("test:///default")
    yield connection.lookupByName("test")
    connection.close()


def test_a_vm_has_its_domain_from_define_to_undefine(vm: VM, domain: Any) -> None:
    with pytest.raises(Refusal, match="default/vm is not defined: it is preparing"):
        vm.domain()
    with vm.having(domain):
        vm.becomes(Phase.RUNNING)
        assert vm.domain().name() == "test"
    vm.becomes(Phase.ENDED)
    with pytest.raises(Refusal, match="it is ended"):
        vm.domain()


def test_a_stop_waits_for_whoever_makes_the_vm_live(vm: VM) -> None:
    vm.request(StopRequested.SHUTDOWN)
    vm.request(StopRequested.KILL)
    assert [vm.events.get(), vm.events.get()] == [StopRequested.SHUTDOWN, StopRequested.KILL]


def test_a_subscriber_hears_the_phase_as_it_is_and_all_that_follows_to_the_end(vm: VM) -> None:
    vm.becomes(Phase.STARTING)
    changes = vm.changes()
    vm.happened("started", "booted")
    vm.becomes(Phase.RUNNING)
    vm.happened("suspended", "paused")
    vm.becomes(Phase.ENDED)
    vm.happened("undefined", "removed")
    heard = list(changes)
    assert [(change.phase, change.event, change.reason) for change in heard] == [
        (Phase.STARTING, "", ""),
        (Phase.STARTING, "started", "booted"),
        (Phase.RUNNING, "", ""),
        (Phase.RUNNING, "suspended", "paused"),
        (Phase.ENDED, "", ""),
    ]
    assert sorted(change.time for change in heard) == [change.time for change in heard]


def test_who_subscribes_to_a_vm_that_has_ended_hears_just_that(vm: VM) -> None:
    vm.becomes(Phase.ENDED)
    assert [change.phase for change in vm.changes()] == [Phase.ENDED]


def test_a_subscriber_who_does_not_read_delays_nobody_and_is_told_what_it_lost(vm: VM) -> None:
    slow, quick = vm.changes(), vm.changes()
    for number in range(300):
        vm.happened(str(number))
        next(quick)
    assert (next(quick).event, next(slow).event) == ("299", "44")
    slow = vm.changes()
    for number in range(300):
        vm.happened(str(number))
    first, second = next(slow), next(slow)
    assert (first.event, first.lost, second.event, second.lost) == ("44", 45, "45", 0)


def test_a_subscriber_who_waits_can_be_let_go_by_another_thread(vm: VM) -> None:
    with vm.changes() as changes:
        reader = threading.Thread(target=lambda: list(changes))
        reader.start()
        changes.close()
        reader.join(10)
        assert not reader.is_alive()
    vm.becomes(Phase.RUNNING)
    assert [change.phase for change in changes] == []
