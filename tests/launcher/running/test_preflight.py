"""The memory that VFIO may lock, in a process with a limit of its own and without the right to raise it; and KVM."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import Refusal
from launcher.running.preflight import has_kvm
from tests.processes import ROOT

KIB, MIB = 1 << 10, 1 << 20
_PROGRAM = """
import resource
from launcher import errors
from launcher.running import preflight
preflight._VFIO_OVERHEAD = {overhead}
try:
    preflight.let_vfio_lock({guest})
except errors.Refusal as refusal:
    print(refusal)
else:
    print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
"""


def limited(hard: int, guest: int, overhead: int = 1 << 30) -> str:
    """What comes of it in a process that may lock `hard` bytes and not raise that."""
    unable = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    program = _PROGRAM.format(guest=guest, overhead=overhead)
    return subprocess.run(
        [*unable, "prlimit", f"--memlock={KIB}:{hard}", sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def test_a_limit_that_is_enough_is_left_as_it_is() -> None:
    """The guest's memory and the reserve, to the byte; small figures, since no test may count on a large limit."""
    assert limited(64 * KIB, guest=60 * KIB, overhead=4 * KIB) == str(64 * KIB)
    assert "VFIO locks" in limited(64 * KIB, guest=60 * KIB + 1, overhead=4 * KIB)


def test_what_is_missing_is_said_in_numbers_with_what_mends_it() -> None:
    said = limited(2 * MIB, guest=256 * MIB)
    assert "1280 MiB with libvirt's reserve, and this container may lock 2 MiB" in said
    assert "the capability SYS_RESOURCE" in said
    assert "LimitMEMLOCK=infinity" in said


def test_where_there_is_kvm_guests_run_under_it(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    assert has_kvm(device, emulation_allowed=False)
    assert has_kvm(device, emulation_allowed=True)


def test_without_kvm_nobody_is_given_a_slow_guest_who_has_not_asked_for_one(tmp_path: Path) -> None:
    assert not has_kvm(tmp_path / "kvm", emulation_allowed=True)
    with pytest.raises(Refusal) as refusal:
        has_kvm(tmp_path / "kvm", emulation_allowed=False)
    assert f"there is no {tmp_path}/kvm" in str(refusal.value)
    assert 'allow it with --emulation, or with the annotation gpu-launcher.dev/allow-emulation: "true"' in str(
        refusal.value
    )
