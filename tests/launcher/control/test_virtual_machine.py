"""Our own service as bytes, on a real socket: its numbers are written out here, not taken from our .proto."""

import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import libvirt
import pytest

from launcher.runtime.events import SuspendRequested
from launcher.runtime.vm import VM, Phase, StopRequested
from program.errors import Refusal
from tests.launcher.control.serving import CARDS, IDENTITY, OURS, UID, Caller, called, on_test_driver, status_of
from tests.waiting import allowed, until


def field(number: int, content: str) -> bytes:
    """A string, of fewer than 16384 bytes."""
    data = content.encode()
    length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + length + data


VM_FIELDS = field(1, "lab") + field(2, "vm") + field(3, UID)


@pytest.fixture
def vm(tmp_path: Path, short_dir: Path) -> Iterator[VM]:
    with on_test_driver(tmp_path, console=short_dir / "serial") as vm:
        yield vm


@pytest.fixture
def call(short_dir: Path, vm: VM) -> Iterator[Caller]:
    with called(short_dir / "sock", vm) as caller:
        yield caller


def test_the_state_is_the_phase_and_libvirts(call: Caller, vm: VM) -> None:
    def state() -> bytes:
        return call(f"{OURS}GetState")

    assert state() == VM_FIELDS + field(4, "running") + field(5, "running") + field(6, "unknown")
    vm.domain().suspend()
    assert state() == VM_FIELDS + field(4, "running") + field(5, "paused") + field(6, "user")
    vm.becomes(Phase.ENDED)
    assert state() == VM_FIELDS + field(4, "ended")


def test_the_xml_and_the_console_are_the_domains(call: Caller, vm: VM, short_dir: Path) -> None:
    assert call(f"{OURS}GetXML") == field(1, vm.domain().XMLDesc())
    assert call(f"{OURS}GetConsole") == field(1, str(short_dir / "serial"))


_SCREEN = (
    "<graphics type='vnc'><listen type='socket' socket='/run/virt-vnc'/></graphics><video><model type='vga'/></video>"
)


def test_the_screen_is_qemus_socket_and_a_picture_of_it_comes_in_parts(tmp_path: Path, short_dir: Path) -> None:
    with on_test_driver(tmp_path, devices=_SCREEN) as vm, called(short_dir / "sock", vm) as call:
        assert call(f"{OURS}GetScreen") == field(1, "/run/virt-vnc")
        for _ in range(3):  # more than are taken at once
            (part,) = call.stream(f"{OURS}TakeScreenshot")
            assert part.startswith(field(1, "image/png") + b"\x12")
            assert part.endswith(Path("/usr/share/libvirt/test-screenshot.png").read_bytes())  # what libvirt's has


@pytest.mark.parametrize("method", ["GetScreen", "TakeScreenshot"])
def test_a_vm_without_a_screen_has_none(call: Caller, method: str) -> None:
    status = grpc.StatusCode.FAILED_PRECONDITION
    wrong = "the VM: has no screen; leave autoattachGraphicsDevice: false out of its manifest"
    assert status_of(lambda: list(call.stream(OURS + method))) == (status, wrong)


def test_a_vm_is_paused_resumed_and_reset(call: Caller, vm: VM) -> None:
    def state() -> int:
        number: int = vm.domain().state()[0]
        return number

    for _ in range(2):  # what is paused stays so
        assert (call(f"{OURS}Pause"), state()) == (b"", libvirt.VIR_DOMAIN_PAUSED)
    for _ in range(2):
        assert (call(f"{OURS}Resume"), state()) == (b"", libvirt.VIR_DOMAIN_RUNNING)
    assert call(f"{OURS}Reset") == b""


def test_a_shutdown_goes_to_whoever_makes_the_vm_live(call: Caller, vm: VM) -> None:
    assert call(f"{OURS}Shutdown") == b""
    assert vm.events.get(timeout=allowed(5)) is StopRequested.SHUTDOWN
    assert vm.domain().isActive()


def asked_to_suspend(vm: VM) -> SuspendRequested:
    event = vm.events.get(timeout=allowed(5))
    assert isinstance(event, SuspendRequested)
    return event


def test_a_request_to_suspend_is_answered_when_whoever_makes_the_vm_live_is_done(call: Caller, vm: VM) -> None:
    answers = call.stream(f"{OURS}Suspend")
    assert next(answers) == b""
    asked_to_suspend(vm).done()
    assert [*answers] == [b"\x08\x01"]


def test_a_request_to_suspend_is_refused_as_the_vm_refuses_it(call: Caller, vm: VM) -> None:
    answers = call.stream(f"{OURS}Suspend")
    assert next(answers) == b""
    asked_to_suspend(vm).refuse(Refusal("gpu1", "is bound to vfio-pci", "hibernate"))
    said = "gpu1: is bound to vfio-pci; hibernate"
    assert status_of(lambda: [*answers]) == (grpc.StatusCode.FAILED_PRECONDITION, said)


@pytest.mark.parametrize(("method", "what"), [("Pause", "paused"), ("Resume", "resumed"), ("Reset", "reset")])
def test_the_cpus_of_a_guest_that_is_suspended_are_nobody_elses(call: Caller, vm: VM, method: str, what: str) -> None:
    vm.take_cpus()
    said = f"lab/vm: cannot be {what}: it is being suspended; ask again when that is done"
    assert call.status(f"{OURS}{method}") == (grpc.StatusCode.FAILED_PRECONDITION, said)
    vm.release_cpus()
    assert call(f"{OURS}{method}") == b""


def test_a_kill_goes_there_first_and_to_libvirt_as_well(call: Caller, vm: VM) -> None:
    for _ in range(3):
        assert call(f"{OURS}Kill") == b""
        assert vm.events.get(timeout=allowed(5)) is StopRequested.KILL
    until(lambda: not vm.domain().isActive())


OF_LIBVIRT = (
    "Pause", "Resume", "Reset", "GetXML", "GetConsole", "GetScreen", "TakeScreenshot", "GetGuestInfo",
    "GetGuestUsers", "GetGuestFilesystems", "GetGuestGPUs",
)  # fmt: skip


_UNSUPPORTED = "this function is not supported by the connection driver"
_FOUND = b"".join(
    b"\x0a" + bytes([len(gpu)]) + gpu
    for gpu in (
        field(1, "gpu1") + field(2, "0000:41:00.0") + field(3, "0000:02:00.0"),
        field(1, "my-vgpu") + field(2, "7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0") + field(3, "0000:04:00.0"),
    )
)


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
        assert call(f"{OURS}GetGuestGPUs") == _FOUND + field(2, silence)


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.STARTING, Phase.ENDED])
@pytest.mark.parametrize("method", OF_LIBVIRT)
def test_nothing_is_asked_of_a_guest_that_does_not_run(call: Caller, vm: VM, method: str, phase: Phase) -> None:
    """Libvirt would keep whoever asks a domain that starts waiting until it has started, and pause it then."""
    vm.becomes(phase)
    assert call.status(OURS + method) == (
        grpc.StatusCode.FAILED_PRECONDITION, f"lab/vm: is {phase.value}; ask again when it is running",
    )  # fmt: skip


def test_a_vm_that_is_not_defined_can_be_killed(short_dir: Path) -> None:
    vm = VM(IDENTITY)
    with called(short_dir / "sock", vm) as call:
        assert call(f"{OURS}Kill") == b""
    assert vm.events.get(timeout=allowed(5)) is StopRequested.KILL


def test_changes_are_told_until_the_end(call: Caller, vm: VM) -> None:
    watching = call.stream(f"{OURS}WatchChanges")
    told = [next(watching)]
    vm.happened("suspended", "paused")
    vm.becomes(Phase.ENDED)
    vm.happened("undefined", "removed")
    told += watching
    assert [change[:1] for change in told] == [b"\x09"] * 3  # a double
    times = [struct.unpack("<d", change[1:9])[0] for change in told]
    assert sorted(times) == times
    assert [change[9:] for change in told] == [
        field(2, "running"),
        field(2, "running") + field(3, "suspended") + field(4, "paused"),
        field(2, "ended"),
    ]


def test_nothing_else_is_served(call: Caller) -> None:
    for method in (f"{OURS}Pauze", "/kubevirt.cmd.v1.Cmd/Ping", "//", ""):
        assert call.status(method) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found")
