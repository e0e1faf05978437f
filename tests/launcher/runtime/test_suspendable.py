"""What cannot be saved of a guest, by its domain and the node's sysfs."""

from pathlib import Path

import pytest

from launcher.runtime.suspendable import QEMU_SPEED, needed, not_saved, suspendable, too_short
from program.problem import Severity

_CARD = """<hostdev mode='subsystem' type='pci' managed='no'><source>
<address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source><alias name='ua-gpu-gpu1'/></hostdev>"""
_VGPU = """<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>
<address uuid='7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0'/></source></hostdev>"""
_SHARE = "<filesystem type='mount'><driver type='virtiofs'/><target dir='data'/></filesystem>"
_SCRATCH = "<disk type='file' device='disk'><source file='/var/run/libvirt/empty-disks/s.qcow2'/></disk>"
_OVERLAY = "/var/run/kubevirt-ephemeral-disks/disk-data/root/disk.qcow2"
_ROOT = f"<disk type='file' device='disk'><source file='{_OVERLAY}'/><alias name='ua-root'/>{{}}</disk>"
_CLAIM = "<disk type='file' device='disk'><source file='/var/run/kubevirt-private/vmi-disks/d/disk.img'/></disk>"
_SEED = "/var/run/kubevirt-ephemeral-disks/cloud-init-data/default/vm/noCloud.iso"
_CLOUD_INIT = f"<disk type='file' device='disk'><source file='{_SEED}'/></disk>"
_SEV = "<launchSecurity type='sev'/>"


def domain(*devices: str, more: str = "") -> str:
    return f"<domain><devices>{''.join(devices)}</devices>{more}</domain>"


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A card on vfio-pci."""
    (tmp_path / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    card = tmp_path / "bus/pci/devices/0000:41:00.0"
    card.mkdir(parents=True)
    (card / "driver").symlink_to(tmp_path / "bus/pci/drivers/vfio-pci")
    return tmp_path


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (domain(_CARD), "gpu-gpu1: 0000:41:00.0 is bound to vfio-pci, which cannot tell what is in a device; "),
        (domain(_SHARE), "data: is mounted in the guest by virtiofs, whose state libvirt does not save; use a disk"),
        (domain(_SCRATCH), "/var/run/libvirt/empty-disks/s.qcow2: what the guest writes to it is in "),
        (domain(_ROOT.format("")), f"root: what the guest writes to it is in {_OVERLAY}, which ends with the pod; "),
        (domain(more=_SEV), "launchSecurity: nobody but the guest can read its memory; "),
    ],
)
def test_what_cannot_be_saved_is_named(sys: Path, xml: str, says: str) -> None:
    (problem,) = not_saved(xml, sys)
    assert str(problem).startswith(says)


def test_what_a_device_of_its_own_driver_can_is_for_qemu_to_say(sys: Path) -> None:
    (sys / "bus/pci/devices/0000:41:00.0/driver").unlink()
    (sys / "bus/pci/devices/0000:41:00.0/driver").symlink_to(sys / "bus/pci/drivers/nvidia")
    xml = domain(_CARD, _VGPU, _CLAIM, _ROOT.format("<readonly/>"))
    assert [*not_saved(xml, sys)] == []


def test_a_seed_of_cloud_init_is_made_anew_by_the_next_pod(sys: Path) -> None:
    assert [*not_saved(domain(_CLOUD_INIT), sys)] == []


def test_a_vm_that_cannot_be_suspended_runs_with_a_warning(sys: Path) -> None:
    assert [*suspendable(domain(), 1 << 20, sys, sys)] == []
    (found,) = suspendable(domain(_CARD), 1 << 20, sys, sys)
    assert found.severity is Severity.WARNING
    assert "the VM cannot be suspended: 0000:41:00.0 is bound to vfio-pci" in str(found)
    (small,) = suspendable(domain(), 1 << 60, sys, sys)
    assert f"suspending the VM may need {needed(1 << 60) >> 20} MiB; make the claim larger" in str(small)
    (gone,) = suspendable(domain(), 1 << 20, sys, sys / "claim")
    assert "the VM cannot be suspended: No such file or directory" in str(gone)


def test_a_drain_that_has_no_time_to_save_the_guest_is_told_beforehand(sys: Path) -> None:
    assert too_short(16 << 30, 16) is None
    short = too_short(16 << 30, 15)
    assert str(short).endswith(
        "spec.terminationGracePeriodSeconds: is 15: 16384 MiB of memory take 8 s to save at 2048 MiB/s, and saving has "
        "half of it; then the guest shuts down instead; write 16 or more"
    )
    assert "write 32 or more" in str(too_short(16 << 30, 30, speed=1 << 30))


def test_the_claims_speed_is_measured_and_nothing_stays_there(sys: Path) -> None:
    before = sorted(sys.iterdir())
    assert [*suspendable(domain(), 1 << 20, sys, sys, grace=3600)] == []
    (short,) = suspendable(domain(), 1 << 20, sys, sys, grace=0)
    assert "write 1 or more" in str(short)
    assert sorted(sys.iterdir()) == before
    memory = 2 * int(QEMU_SPEED) * 3600  # as much as QEMU would just write
    slow = [each for each in suspendable(domain(), memory, sys, sys, grace=3600 * 4) if "MiB/s" in str(each)]
    assert len(slow) == 1
    assert "at 2048 MiB/s" not in str(slow[0])
