"""KubeVirt's protocol as bytes, on a real socket: its numbers are written out here, not taken from our .proto."""

import json
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import grpc
import libvirt
import pytest

from launcher.running.vm import VM, Phase, StopRequested
from tests.launcher.control.serving import IDENTITY, UID, Caller, called, on_test_driver

CMD = "/kubevirt.cmd.v1.Cmd/"

ANSWERED = (
    "Ping", "SyncVirtualMachine", "PauseVirtualMachine", "UnpauseVirtualMachine", "ResetVirtualMachine",
    "ShutdownVirtualMachine", "KillVirtualMachine", "DeleteVirtualMachine", "GetDomain", "GetDomainStats",
    "GetQemuVersion",
)  # fmt: skip

# Those that answer with a Response, and those that have one as field 1.
DECLINED = (
    "FreezeVirtualMachine", "UnfreezeVirtualMachine", "SoftRebootVirtualMachine", "MigrateVirtualMachine",
    "SyncMigrationTarget", "CancelVirtualMachineMigration", "SignalTargetPodCleanup",
    "FinalizeVirtualMachineMigration", "HotplugHostDevices", "VirtualMachineMemoryDump",
    "SyncVirtualMachineCPUs", "SyncVirtualMachineMemory", "InjectLaunchSecret", "BackupVirtualMachine",
)  # fmt: skip
DECLINED_WITHIN = (
    "GetGuestInfo", "GetUsers", "GetFilesystems", "Exec", "GuestPing", "GetSEVInfo", "GetLaunchMeasurement",
    "GetDomainDirtyRateStats", "GetScreenshot", "RedefineCheckpoint", "GetVMStats",
)  # fmt: skip

SUCCESS = b"\x08\x01"  # Response.success, field 1


def field(number: int, content: bytes | str) -> bytes:
    """A field of strings, bytes or a message, of fewer than 16384 bytes."""
    data = content.encode() if isinstance(content, str) else content
    length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + length + data


def vmi_request(vmi: object, options: bytes = b"") -> bytes:
    """VMIRequest{vmi=1{vmiJson=1}, options=2}."""
    return field(1, field(1, vmi if isinstance(vmi, bytes) else json.dumps(vmi))) + options


def failure(answer: bytes) -> str:
    """The message, field 2, of a Response without success."""
    assert answer[:1] == b"\x12", answer
    return answer[2 if answer[1] < 128 else 3 :].decode()


def wrapped(answer: bytes) -> bytes:
    """What follows Response{success} in an answer that has it as field 1."""
    assert answer.startswith(field(1, SUCCESS)), answer
    return answer[4:]


def text_of(answer: bytes) -> str:
    """The string of field 2 beside that Response; empty where there is none."""
    rest = wrapped(answer)
    assert rest[:1] in (b"", b"\x12"), rest
    return rest[2 if rest[1:2] < b"\x80" else 3 :].decode() if rest else ""


OURS = {"metadata": {"namespace": "lab", "name": "vm", "uid": UID}}


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[VM]:
    with on_test_driver(tmp_path) as vm:
        yield vm


@pytest.fixture
def call(short_dir: Path, vm: VM) -> Iterator[Caller]:
    with called(short_dir / "sock", vm) as caller:
        yield caller


def state(vm: VM) -> int:
    number: int = vm.domain().state()[0]
    return number


def test_the_version_is_told(call: Caller) -> None:
    assert call("/kubevirt.cmd.info.CmdInfo/Info") == field(1, "1")


def test_all_36_methods_are_served(call: Caller) -> None:
    assert len({*ANSWERED, *DECLINED, *DECLINED_WITHIN}) == 36
    for method in (*ANSWERED, *DECLINED, *DECLINED_WITHIN):
        call(CMD + method)
    assert call.status(f"{CMD}GetDevices")[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", DECLINED)
def test_what_is_not_done_fails_by_name(call: Caller, method: str) -> None:
    assert failure(call(CMD + method)) == f"gpu-launcher does not do {method}"


@pytest.mark.parametrize("method", DECLINED_WITHIN)
def test_what_is_not_told_fails_by_name(call: Caller, method: str) -> None:
    message = f"gpu-launcher does not do {method}"
    assert call(CMD + method) == field(1, field(2, message))


def test_a_vm_is_paused_resumed_and_reset(call: Caller, vm: VM) -> None:
    for _ in range(2):  # what is paused stays so
        assert call(f"{CMD}PauseVirtualMachine", vmi_request(OURS)) == SUCCESS
        assert state(vm) == libvirt.VIR_DOMAIN_PAUSED
    for _ in range(2):
        assert call(f"{CMD}UnpauseVirtualMachine", vmi_request(OURS)) == SUCCESS
        assert state(vm) == libvirt.VIR_DOMAIN_RUNNING
    assert call(f"{CMD}ResetVirtualMachine", vmi_request(OURS)) == SUCCESS


@pytest.mark.parametrize(
    ("method", "stop"),
    [("ShutdownVirtualMachine", StopRequested.SHUTDOWN), ("KillVirtualMachine", StopRequested.KILL)],
)
def test_a_stop_goes_to_whoever_makes_the_vm_live(call: Caller, vm: VM, method: str, stop: StopRequested) -> None:
    assert call(CMD + method, vmi_request(OURS)) == SUCCESS
    assert vm.events.get(timeout=5) is stop


def test_a_definition_goes_with_its_vm(call: Caller, vm: VM) -> None:
    assert failure(call(f"{CMD}DeleteVirtualMachine", vmi_request(OURS))) == (
        "lab/vm is running, and its definition goes when it ends; ShutdownVirtualMachine or KillVirtualMachine ends it"
    )
    vm.becomes(Phase.ENDED)
    assert call(f"{CMD}DeleteVirtualMachine", vmi_request(OURS)) == SUCCESS


def test_to_sync_the_vm_that_runs_changes_nothing(call: Caller, vm: VM) -> None:
    before = vm.domain().XMLDesc()
    more = {"spec": {"domain": {"cpu": {"cores": 64}}}}
    # VirtualMachineOptions{MemBalloonStatsPeriod=2: 10}
    options = field(2, b"\x10\x0a")
    assert call(f"{CMD}SyncVirtualMachine", vmi_request(OURS | more, options)) == SUCCESS
    assert vm.domain().XMLDesc() == before
    with pytest.raises(Empty):
        vm.events.get_nowait()


@pytest.mark.parametrize("method", ["Sync", "Pause", "Unpause", "Reset", "Shutdown", "Kill", "Delete"])
def test_nothing_is_done_for_another_vm(call: Caller, vm: VM, method: str) -> None:
    another = {"metadata": {"namespace": "lab", "name": "vm", "uid": "another"}}
    assert failure(call(f"{CMD}{method}VirtualMachine", vmi_request(another))) == (
        f"this launcher runs lab/vm of uid {UID}, and the request is for lab/vm of uid another"
    )
    assert state(vm) == libvirt.VIR_DOMAIN_RUNNING
    with pytest.raises(Empty):
        vm.events.get_nowait()


@pytest.mark.parametrize(
    ("vmi", "is_ours"),
    [
        ({"metadata": {"namespace": "lab", "name": "vm"}}, True),
        ({"metadata": {"name": "vm"}}, False),  # of the namespace default
        ({"metadata": {"namespace": "lab", "name": "other", "uid": UID}}, False),
        ({"metadata": {"namespace": "other", "name": "vm", "uid": UID}}, False),
    ],
)
def test_a_vm_is_its_namespace_name_and_uid(call: Caller, vmi: object, is_ours: bool) -> None:
    assert (call(f"{CMD}SyncVirtualMachine", vmi_request(vmi)) == SUCCESS) is is_ours


@pytest.mark.parametrize(
    "vmi", [b"{", b"[]", b"7", b"{}", b'{"metadata": []}', b'{"metadata": {}}', b"[" * 9000, b"\xff\xfe"]
)
def test_what_is_no_vmi_fails_in_one_line(call: Caller, vmi: bytes) -> None:
    assert failure(call(f"{CMD}SyncVirtualMachine", vmi_request(vmi))) == (
        "the request's vmiJson is no VirtualMachineInstance; expected JSON with metadata.name"
    )


def test_who_names_no_vm_means_the_one_here(call: Caller, vm: VM) -> None:
    assert call(f"{CMD}PauseVirtualMachine") == SUCCESS
    assert state(vm) == libvirt.VIR_DOMAIN_PAUSED


@pytest.mark.parametrize("method", ["Pause", "Unpause", "Reset"])
def test_nothing_is_done_to_what_is_not_defined_yet(short_dir: Path, method: str) -> None:
    with called(short_dir / "sock", VM(IDENTITY)) as call:
        assert failure(call(f"{CMD}{method}VirtualMachine")) == (
            "lab/vm is not defined: it is preparing; ask again when it is running"
        )


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.ENDED])
def test_there_is_no_domain_before_and_after(call: Caller, vm: VM, phase: Phase) -> None:
    vm.becomes(phase)
    assert text_of(call(f"{CMD}GetDomain")) == ""
    assert text_of(call(f"{CMD}GetDomainStats")) == ""


def test_a_domain_that_starts_is_told_without_waiting_for_libvirt(short_dir: Path) -> None:
    vm = VM(IDENTITY)
    vm.becomes(Phase.STARTING)
    with called(short_dir / "sock", vm) as call:
        domain = json.loads(text_of(call(f"{CMD}GetDomain")))
    assert domain["Status"] == {"Status": "Paused", "Reason": "StartingUp"}
    assert domain["Spec"] == {"Name": "lab_vm", "Metadata": {"KubeVirt": {"UID": UID}}}


def test_the_domain_is_told(call: Caller, vm: VM) -> None:
    domain = json.loads(text_of(call(f"{CMD}GetDomain")))
    assert domain["ObjectMeta"] == {"name": "vm", "namespace": "lab", "uid": UID}
    assert domain["Status"] == {"Status": "Running", "Reason": "Unknown"}
    assert domain["Spec"]["Memory"] == {"Value": 65536, "Unit": "KiB"}
    assert domain["Spec"]["UUID"] == vm.domain().UUIDString()
    vm.domain().suspend()
    assert json.loads(text_of(call(f"{CMD}GetDomain")))["Status"] == {"Status": "Paused", "Reason": "User"}


def test_statistics_are_told(call: Caller, vm: VM) -> None:
    statistics = json.loads(text_of(call(f"{CMD}GetDomainStats")))
    assert (statistics["Name"], statistics["UUID"]) == ("lab_vm", vm.domain().UUIDString())
    assert (statistics["Memory"]["TotalSet"], statistics["Memory"]["Total"]) == (True, 65536)


def test_the_version_of_qemu_is_told(call: Caller) -> None:
    assert text_of(call(f"{CMD}GetQemuVersion")) == "QEMU 0.0.2"  # the test driver's
