import errno
from pathlib import Path

from launcher.checks.access import opened
from launcher.checks.kvm import kvm
from program.problem import Severity

KVM = Path("/dev/kvm")


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
