"""What the threads share of a VM: nobody waits for anybody."""

from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from launcher.runtime.vm import VM, Change, Phase, StopRequested, VMIdentity
from program.errors import Refusal


@pytest.fixture
def vm() -> VM:
    return VM(VMIdentity("default", "vm", "b1f0bb32"))


@pytest.fixture
def domain() -> Iterator[Any]:
    connection = libvirt.open("test:///default")
    yield connection.lookupByName("test")
    connection.close()


def test_a_vm_has_its_domain_from_define_to_undefine(vm: VM, domain: Any) -> None:
    with pytest.raises(Refusal, match="default/vm: is preparing, and not defined"):
        vm.domain()
    with vm.holding_domain(domain):
        vm.becomes(Phase.RUNNING)
        assert vm.domain().name() == "test"
    vm.becomes(Phase.ENDED)
    with pytest.raises(Refusal, match="is ended"):
        vm.domain()


def test_a_stop_waits_for_whoever_makes_the_vm_live(vm: VM) -> None:
    vm.request(StopRequested.SHUTDOWN)
    vm.request(StopRequested.KILL)
    assert [vm.events.get(), vm.events.get()] == [StopRequested.SHUTDOWN, StopRequested.KILL]


def test_a_subscriber_is_told_the_phase_as_it_is_and_all_that_follows(vm: VM) -> None:
    vm.becomes(Phase.STARTING)
    told: list[Change] = []
    with vm.telling(told.append):
        vm.happened("started", "booted")
        vm.becomes(Phase.RUNNING)
        vm.happened("suspended", "paused")
        vm.becomes(Phase.ENDED)
    assert [(change.phase, change.event, change.reason) for change in told] == [
        (Phase.STARTING, "", ""),
        (Phase.STARTING, "started", "booted"),
        (Phase.RUNNING, "", ""),
        (Phase.RUNNING, "suspended", "paused"),
        (Phase.ENDED, "", ""),
    ]
    assert sorted(change.time for change in told) == [change.time for change in told]


def test_a_subscriber_that_has_gone_is_told_nothing_and_forgotten(vm: VM) -> None:
    stays, goes = list[Change](), list[Change]()
    with vm.telling(stays.append):
        with vm.telling(goes.append):
            pass
        vm.becomes(Phase.RUNNING)
        assert [change.phase for change in goes] == [Phase.PREPARING]
        assert [change.phase for change in stays] == [Phase.PREPARING, Phase.RUNNING]
        assert vm._subscribers == [stays.append]
    assert vm._subscribers == []


def test_nobody_suspends_a_guest_while_others_pause_or_resume_it(vm: VM) -> None:
    """A resume that waits for libvirt would let it run again once its memory is saved."""
    others = vm.changing_cpus("resumed"), vm.changing_cpus("paused")
    said = "cannot be suspended: it is being suspended, paused, resumed or reset"
    with others[0], others[1], pytest.raises(Refusal, match=said):
        vm.take_cpus()
    vm.take_cpus()
    with pytest.raises(Refusal, match="cannot be suspended"):
        vm.take_cpus()
