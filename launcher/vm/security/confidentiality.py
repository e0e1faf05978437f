"""Technologies that keep a guest's memory from its host, each with what it means for everything else in the guest.

What depends on one asks here for the property, and not which technology it is.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidentiality:
    """What a technology means for the guest.

    `libvirt_type`: the type of <launchSecurity>. `firmware_feature`: what the description of an EFI image has to list
    (QEMU's docs/interop/firmware.json). `shares_buffers`: a device reaches only the buffers that the guest shares, so
    virtio devices use the guest's DMA API (KubeVirt writes iommu='on' for that). `pins_memory`: all of it, from the
    start. `needs_dev_sev`: QEMU opens /dev/sev. `is_measured`: the whole firmware is measured, so it keeps no
    variables. `has_secure_boot`: whether there is firmware with secure boot for it; TDX's has the keys in its image.
    `has_smm` and `has_pmu`: whether such a guest can have system management mode and performance counters.
    `quote_socket`: where QEMU reaches the node's Quote Generation Service, which signs the guest's reports for a remote
    party.
    """

    libvirt_type: str
    firmware_feature: str
    shares_buffers: bool = False
    pins_memory: bool = False
    needs_dev_sev: bool = False
    is_measured: bool = False
    has_secure_boot: bool = False
    has_smm: bool = True
    has_pmu: bool = True
    quote_socket: str | None = None


SEV = Confidentiality(
    libvirt_type="sev", firmware_feature="amd-sev", shares_buffers=True, pins_memory=True, needs_dev_sev=True
)
#: With the CPU's registers encrypted too.
SEV_ES = replace(SEV, firmware_feature="amd-sev-es")
SEV_SNP = replace(SEV, libvirt_type="sev-snp", firmware_feature="amd-sev-snp", pins_memory=False, is_measured=True)
TDX = Confidentiality(
    libvirt_type="tdx",
    firmware_feature="intel-tdx",
    is_measured=True,
    has_secure_boot=True,
    has_smm=False,
    has_pmu=False,
    quote_socket="/var/run/tdx-qgs/qgs.socket",  # libvirt's default, and KubeVirt's
)
