"""Technologies that keep a guest's memory from its host, each with what it means for everything else in the guest.

Who depends on one asks here for the property, and not which technology it is.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidentiality:
    """`libvirt_type` is that of <launchSecurity>; `firmware_feature` what an EFI image has to say of itself (QEMU's
    docs/interop/firmware.json).

    `shares_buffers`: a device reaches only the buffers that the guest shares, so that virtio devices go by the guest's
    DMA API (as KubeVirt has it, which writes iommu='on'). `pins_memory`: all of it, from the start. `is_measured`:
    the firmware is measured whole, and so keeps no variables. `needs_dev_sev`: QEMU opens /dev/sev. `has_smm` and
    `has_pmu`: whether such a guest can have system management mode, and performance counters.
    """

    libvirt_type: str
    firmware_feature: str
    shares_buffers: bool
    pins_memory: bool
    is_measured: bool
    needs_dev_sev: bool
    has_smm: bool = True
    has_pmu: bool = True


SEV = Confidentiality(
    libvirt_type="sev",
    firmware_feature="amd-sev",
    shares_buffers=True,
    pins_memory=True,
    is_measured=False,
    needs_dev_sev=True,
)
#: With the CPU's registers encrypted too.
SEV_ES = replace(SEV, firmware_feature="amd-sev-es")
SEV_SNP = Confidentiality(
    libvirt_type="sev-snp",
    firmware_feature="amd-sev-snp",
    shares_buffers=True,
    pins_memory=False,
    is_measured=True,
    needs_dev_sev=True,
)
TDX = Confidentiality(
    libvirt_type="tdx",
    firmware_feature="intel-tdx",
    shares_buffers=False,
    pins_memory=False,
    is_measured=True,
    needs_dev_sev=False,
    has_smm=False,
    has_pmu=False,
)
