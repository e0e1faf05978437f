import pytest

from launcher.vm.disks.guest import GuestDisk
from launcher.vm.disks.manifest import Bus, Disk
from launcher.vm.disks.xml import disk
from launcher.vm.security.confidentiality import SEV, SEV_ES, SEV_SNP, TDX, Confidentiality
from tests.launcher.vms import a_guest


@pytest.mark.parametrize("technology", [SEV, SEV_ES, SEV_SNP, TDX])
@pytest.mark.parametrize("bus", ["virtio", "scsi", "sata"])
def test_only_virtio_goes_by_the_guests_dma_api(bus: Bus, technology: Confidentiality) -> None:
    """A SCSI disk's is its controller's, and SATA has none."""
    in_manifest = Disk(name="a")
    drive = GuestDisk(manifest=in_manifest, bus=bus, number=0, source=None, cache="none", threads=(), block_sizes=None)
    driver = disk(drive, a_guest(confidentiality=technology), has_many_queues=False).find("driver")
    assert driver is not None
    assert (driver.get("iommu") == "on") is (bus == "virtio" and technology is not TDX)
