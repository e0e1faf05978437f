"""The answers as lines of JSON, on a real socket: written out here, and not taken from our modules."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from launcher.control import messages
from launcher.control.virtual_machine import VMService
from launcher.runtime.events import SuspendRequested
from launcher.runtime.vm import VM, Phase, StopRequested
from program.errors import Refusal
from program.problem import Problem
from tests.launcher.control.lines import END, Caller, Refused, raw
from tests.launcher.control.serving import CARDS, IDENTITY, UID, called, on_test_driver
from tests.waiting import allowed, until


@pytest.fixture
def vm(tmp_path: Path, short_dir: Path) -> Iterator[VM]:
    with on_test_driver(tmp_path, console=short_dir / "serial") as vm:
        yield vm


@pytest.fixture
def call(short_dir: Path, vm: VM) -> Iterator[Caller]:
    with called(short_dir / "sock", vm) as caller:
        yield caller


def test_every_method_is_answered(vm: VM) -> None:
    assert {method.name for method in VMService(vm).methods} == set(messages.METHODS)


def test_the_state_is_the_phase_and_libvirts(call: Caller, vm: VM) -> None:
    its = {"namespace": "lab", "name": "vm", "uid": UID}
    assert call("state") == {**its, "phase": "running", "state": "running", "reason": "unknown"}
    vm.domain().suspend()
    assert call("state") == {**its, "phase": "running", "state": "paused", "reason": "user"}
    vm.becomes(Phase.ENDED)
    assert call("state") == {**its, "phase": "ended", "state": "", "reason": ""}


def test_the_xml_and_the_console_are_the_domains(call: Caller, vm: VM, short_dir: Path) -> None:
    assert call("xml") == {"xml": vm.domain().XMLDesc()}
    assert call("console") == {"path": str(short_dir / "serial")}


_SCREEN = (
    "<graphics type='vnc'><listen type='socket' socket='/run/virt-vnc'/></graphics><video><model type='vga'/></video>"
)


def test_the_screen_is_qemus_socket_and_a_picture_of_it_comes_in_parts(tmp_path: Path, short_dir: Path) -> None:
    with on_test_driver(tmp_path, devices=_SCREEN) as vm, called(short_dir / "sock", vm) as call:
        assert call("screen") == {"path": "/run/virt-vnc"}
        for _ in range(3):  # more than are taken at once
            (part,) = call.stream("screenshot")
            assert part["mime_type"] == "image/png"
            picture = Path("/usr/share/libvirt/test-screenshot.png")  # what libvirt's has
            assert base64.b64decode(part["data"]) == picture.read_bytes()


@pytest.mark.parametrize("method", ["screen", "screenshot"])
def test_a_vm_without_a_screen_has_none(call: Caller, method: str) -> None:
    fix = "leave autoattachGraphicsDevice: false out of its manifest"
    assert call.problem(method) == ("the VM", "has no screen", fix)


def test_a_vm_is_paused_resumed_and_reset(call: Caller, vm: VM) -> None:
    def state() -> int:
        number: int = vm.domain().state()[0]
        return number

    for _ in range(2):  # what is paused stays so
        assert (call("pause"), state()) == ({}, libvirt.VIR_DOMAIN_PAUSED)
    for _ in range(2):
        assert (call("resume"), state()) == ({}, libvirt.VIR_DOMAIN_RUNNING)
    assert call("reset") == {}


def test_a_shutdown_goes_to_whoever_makes_the_vm_live(call: Caller, vm: VM) -> None:
    assert call("shutdown") == {}
    assert vm.events.get(timeout=allowed(5)) is StopRequested.SHUTDOWN
    assert vm.domain().isActive()


def asked_to_suspend(vm: VM) -> SuspendRequested:
    event = vm.events.get(timeout=allowed(5))
    assert isinstance(event, SuspendRequested)
    return event


def test_a_request_to_suspend_is_answered_when_whoever_makes_the_vm_live_is_done(call: Caller, vm: VM) -> None:
    answers = call.stream("suspend")
    assert next(answers) == {"saved": False}
    asked_to_suspend(vm).done(None)
    assert [*answers] == [{"saved": True}]


def test_a_request_to_suspend_is_refused_as_the_vm_refuses_it(call: Caller, vm: VM) -> None:
    answers = call.stream("suspend")
    assert next(answers) == {"saved": False}
    problems = [("gpu1", "is bound to vfio-pci", "hibernate"), ("gpu2", "is bound to vfio-pci", "hibernate")]
    asked_to_suspend(vm).refuse(Refusal.of([Problem(*each) for each in problems]))
    with pytest.raises(Refused) as refused:
        next(answers)
    assert refused.value.problems == problems


@pytest.mark.parametrize(("method", "what"), [("pause", "paused"), ("resume", "resumed"), ("reset", "reset")])
def test_the_cpus_of_a_guest_that_is_suspended_are_nobody_elses(call: Caller, vm: VM, method: str, what: str) -> None:
    vm.take_cpus()
    refused = ("lab/vm", f"cannot be {what}: it is being suspended", "ask again when that is done")
    assert call.problem(method) == refused
    vm.release_cpus()
    assert call(method) == {}


def test_a_kill_goes_there_first_and_to_libvirt_as_well(call: Caller, vm: VM) -> None:
    for _ in range(3):
        assert call("kill") == {}
        assert vm.events.get(timeout=allowed(5)) is StopRequested.KILL
    until(lambda: not vm.domain().isActive())


OF_LIBVIRT: dict[str, dict[str, Any]] = {
    **{method: {} for method in ("pause", "resume", "reset", "xml", "console", "screen", "screenshot")},
    **{f"guest {what}": {"seconds": 1} for what in ("ping", "info", "users", "filesystems", "gpus")},
    "guest exec": {"seconds": 1, "path": "true", "arguments": ["x"]},
}


_UNSUPPORTED = "this function is not supported by the connection driver"
_UNTOLD = dict.fromkeys(("driver_version", "utilization", "memory_used", "memory_total", "temperature"))
_CARDS = [
    {"name": "gpu1", "host": "0000:41:00.0", "guest": "0000:02:00.0", **_UNTOLD},
    {"name": "my-vgpu", "host": "7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0", "guest": "0000:04:00.0", **_UNTOLD},
]


@pytest.mark.parametrize(
    ("allowed", "silence"),
    [
        (False, "the guest is not asked: its owner allows it by the annotation gpu-launcher.dev/ask-guest: nvidia-smi"),
        (True, f"the guest's agent: {_UNSUPPORTED}: virDomainQemuAgentCommand; its log in the guest may say more"),
    ],
)
def test_the_guests_cards_are_told_whether_or_not_the_guest_tells_of_them(
    tmp_path: Path, short_dir: Path, allowed: bool, silence: str
) -> None:
    with (
        on_test_driver(tmp_path, devices=CARDS, asks_nvidia_smi=allowed) as vm,
        called(short_dir / "sock", vm) as call,
    ):
        assert call("guest gpus", seconds=1) == {"gpus": _CARDS, "silence": silence, "mismatch": ""}


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.STARTING, Phase.ENDED])
@pytest.mark.parametrize("method", OF_LIBVIRT)
def test_nothing_is_asked_of_a_guest_that_does_not_run(call: Caller, vm: VM, method: str, phase: Phase) -> None:
    """Libvirt would keep whoever asks a domain that starts waiting until it has started, and pause it then."""
    vm.becomes(phase)
    refused = ("lab/vm", f"is {phase.value}", "ask again when it is running")
    assert call.problem(method, **OF_LIBVIRT[method]) == refused


def test_a_vm_that_is_not_defined_can_be_killed(short_dir: Path) -> None:
    vm = VM(IDENTITY)
    with called(short_dir / "sock", vm) as call:
        assert call("kill") == {}
    assert vm.events.get(timeout=allowed(5)) is StopRequested.KILL


def test_changes_are_told_until_the_end(call: Caller, vm: VM) -> None:
    watching = call.stream("events")
    told = [next(watching)]
    vm.happened("suspended", "paused")
    vm.becomes(Phase.ENDED)
    vm.happened("undefined", "removed")
    told += watching
    times = [change.pop("time") for change in told]
    assert sorted(times) == times
    nothing = {"event": "", "reason": "", "lost": 0}
    assert told == [
        {"phase": "running", **nothing},
        {"phase": "running", "event": "suspended", "reason": "paused", "lost": 0},
        {"phase": "ended", **nothing},
    ]


_NO_LINE = "is asked with a line that "
_ONE_OBJECT = "expected an object of JSON on one line"


@pytest.mark.parametrize(
    ("line", "wrong", "fix"),
    [
        (b"", "is no JSON", _ONE_OBJECT),
        (b"GET / HTTP/1.1\r", "is no JSON", _ONE_OBJECT),
        (b"\xff", "is no JSON", _ONE_OBJECT),
        (b"[" * 60_000, "is no JSON", _ONE_OBJECT),
        (b"1" * 60_000, "is no JSON", _ONE_OBJECT),
        (b"[]", "is no object", _ONE_OBJECT),
        (b"{}", "has no version and method", "expected both"),
        (b'{"version": 1, "method": []}', "has no version and method", "expected both"),
        (b'{"version": "1", "method": "state"}', "has no version and method", "expected both"),
        (b'{"version": 1, "method": "pauze"}', "names the method 'pauze'", "expected one of state, xml, console"),
        (b'{"version": 1, "method": "state"}', "has another type as request", "expected an object"),
        (b'{"version": 1, "method": "guest ping", "request": {}}', "has no seconds", "expected int"),
        (b'{"version": 1, "method": "guest ping", "request": {"seconds": "1"}}', "has another type as", "expected int"),
        (b'{"version": 1, "method": "guest exec", "request": {"path": "a", "arguments": [1]}}', "has", "expected str"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_refused(call: Caller, line: bytes, wrong: str, fix: str) -> None:
    with raw(call.path) as caller:
        caller.send(line + b"\n")
        answer = caller.line()
        assert caller.line() is None
    assert answer is not None
    (problem,) = answer["problems"]
    assert problem["subject"] == "the control socket"
    assert problem["wrong"].startswith(f"{_NO_LINE}{wrong}")
    assert problem["fix"].startswith(fix)


def test_a_caller_of_another_version_is_told_so_and_further_fields_are_left_out(call: Caller) -> None:
    with raw(call.path) as caller:
        caller.send(b'{"version": 2, "call": {"state": true}}\n')
        assert caller.line() == {
            "problems": [
                {
                    "subject": "the control socket",
                    "wrong": "is asked in version 2 of its protocol, and has version 1",
                    "fix": "ask with the gpu-launcher that runs the VM: that of its image or package",
                }
            ]
        }
    with raw(call.path) as caller:
        caller.send(b'{"version": 1, "method": "pause", "request": {"softly": true}, "deadline": 3}\n')
        assert (caller.line(), caller.line(), caller.line()) == ({"answer": {}}, END, None)


def test_a_program_may_have_any_number_of_seconds(call: Caller, vm: VM) -> None:
    fix = "its log in the guest may say more"
    wrong = f"{_UNSUPPORTED}: virDomainQemuAgentCommand"
    for seconds in (-1, 0, 10**400):
        assert call.problem("guest exec", path="a", arguments=[], seconds=seconds) == ("the guest's agent", wrong, fix)
