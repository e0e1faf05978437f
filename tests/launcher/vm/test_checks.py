import errno
import socket
from pathlib import Path

from launcher.vm.checks import OWN_MACHINE, opened
from launcher.vm.cpu.checks import kvm
from launcher.vm.from_spec import guest_of
from launcher.vm.security.checks import quotes
from program.problem import Severity
from tests.launcher.vms import read_manifest
from tests.processes import FIXTURES

KVM = Path("/dev/kvm")
TDX = guest_of(read_manifest(FIXTURES / "vms" / "tdx.yaml"))
QUOTES = "var/run/tdx-qgs/qgs.socket"


def test_where_kvm_opens_there_is_nothing_to_say(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    assert opened(device) is None
    assert kvm(device, None, emulation_allowed=False) is kvm(device, None, emulation_allowed=True) is None


def test_without_kvm_nobody_is_given_a_slow_guest_who_has_not_asked_for_one(tmp_path: Path) -> None:
    missing = opened(tmp_path / "kvm")
    assert kvm(KVM, missing, emulation_allowed=True) is None
    found = kvm(KVM, missing, emulation_allowed=False)
    assert found is not None
    assert str(found).startswith(
        "/dev/kvm: is not there, and the guest would have QEMU's own, slow CPU; give the container"
    )
    allow = 'allow it with --emulation, or with the annotation gpu-launcher.dev/allow-emulation: "true"'
    assert allow in found.problem.fix


def test_a_device_that_cannot_be_opened_is_none_and_said_also_to_who_allows_emulation() -> None:
    refused, warned = (kvm(KVM, errno.EACCES, emulation_allowed=allowed) for allowed in (False, True))
    assert refused is not None
    assert warned is not None
    assert (refused.severity, warned.severity) == (Severity.ERROR, Severity.WARNING)
    assert "cannot be opened: Permission denied" in refused.problem.wrong


def test_a_guest_under_tdx_without_the_nodes_socket_gets_no_quotes(tmp_path: Path) -> None:
    found = quotes(TDX, tmp_path)
    assert found is not None
    assert found.severity is Severity.WARNING
    assert str(found).endswith(
        "/var/run/tdx-qgs/qgs.socket: is not there, and the guest starts, but gets no quotes by which a remote party "
        "attests it; where KubeVirt is there too, with its gate WorkloadEncryptionTDX, add devices.kubevirt.io/tdx: 1 "
        "to domain.resources.limits: its device plugin mounts the node's socket"
    )
    at_home = quotes(TDX, tmp_path, OWN_MACHINE)
    assert at_home is not None
    assert at_home.problem.fix.startswith("start the machine's Quote Generation Service")


def test_a_socket_that_qemu_can_open_and_a_guest_without_quotes_are_nothing_to_speak_of(short_dir: Path) -> None:
    path = short_dir / QUOTES
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert quotes(TDX, short_dir) is None
    assert quotes(guest_of(read_manifest(FIXTURES / "vms" / "snp.yaml")), short_dir / "elsewhere") is None


def test_a_file_in_the_sockets_place_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / QUOTES
    path.parent.mkdir(parents=True)
    path.touch()
    assert "is not there" in str(quotes(TDX, tmp_path))
