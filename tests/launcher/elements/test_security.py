import pytest

from launcher.elements.security import is_stateless
from launcher.elements.virtio import is_encrypted
from launcher.manifest.firmware import EFI, Bootloader, Firmware
from launcher.manifest.security import SEV, SNP, TDX, LaunchSecurity
from launcher.manifest.spec import Domain

FIRMWARE = Firmware(bootloader=Bootloader(efi=EFI(secureBoot=False)))


@pytest.mark.parametrize(
    ("security", "encrypted", "stateless"),
    [
        (None, False, False),
        (LaunchSecurity(sev=SEV()), True, False),
        (LaunchSecurity(snp=SNP()), True, True),
        (LaunchSecurity(tdx=TDX()), False, True),
    ],
)
def test_encrypted_memory_decides_about_devices_and_variables(
    security: LaunchSecurity | None, encrypted: bool, stateless: bool
) -> None:
    domain = Domain(launchSecurity=security, firmware=FIRMWARE)
    assert (is_encrypted(domain), is_stateless(domain)) == (encrypted, stateless)
