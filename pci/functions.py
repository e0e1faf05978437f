"""What a PCI function is, by its class and vendor, and whether VFIO has it."""

from pci.address import PCIAddress
from pci.host import Function, Host
from pci.vendors import AMD, AMD_PROCESSORS, INTEL, NVIDIA

_DISPLAY = 0x03
_PROCESSING_ACCELERATOR = 0x1200
_OTHER_BRIDGE = 0x0680
_AUDIO = (0x0401, 0x0403)

#: GPUs of Grace Hopper and Grace Blackwell, whose memory the processor addresses: those of Linux' driver for them
#: (drivers/vfio/pci/nvgrace-gpu/main.c, 6.18).
_GRACE = frozenset({0x2342, 0x2345, 0x2348, 0x2941, 0x31C2})

#: The places of processors' display controllers on the root bus: Intel's (arch/x86/kernel/early-quirks.c looks for it
#: there), and AMD's before Ryzen.
_ON_THE_ROOT_BUS = {INTEL: PCIAddress(0, 0, 2, 0), AMD: PCIAddress(0, 0, 1, 0)}

#: Screens of a server's management controller (BMC), by Linux' drivers for them (6.18): ASPEED's (ast), Matrox' G200
#: (mgag200), HiSilicon's (hibmc).
_BMC_SCREENS = frozenset(
    {
        *("1a03:2000", "1a03:2010", "19e5:1711"),
        *("102b:0520", "102b:0521", "102b:0522", "102b:0524", "102b:0530", "102b:0532", "102b:0533", "102b:0534"),
        *("102b:0536", "102b:0538", "102b:053a", "102b:0540"),
    }
)

_CLASS_WORDS = {
    0x0104: "RAID",
    0x0106: "SATA",
    0x0108: "NVMe",
    0x0200: "network",
    0x0207: "InfiniBand",
    0x0280: "network",
    0x0300: "VGA",
    0x0302: "3D controller",
    0x0380: "display",
    0x0401: "audio",
    0x0403: "audio",
    0x0480: "multimedia",
    0x0600: "host bridge",
    0x0604: "PCI bridge",
    0x0680: "other bridge",
    0x0C03: "USB",
    0x0C80: "UCSI",
    0x1080: "encryption",
    0x1200: "accelerator",
}


def is_gpu(function: Function) -> bool:
    """Whether the function is a display controller (class 03xx), or AMD's processing accelerator (1200)."""
    return function.pci_class >> 16 == _DISPLAY or (
        function.vendor_id == AMD and function.pci_class >> 8 == _PROCESSING_ACCELERATOR
    )


def is_audio(function: Function) -> bool:
    """Whether the function is a sound device (class 0401 or 0403)."""
    return function.pci_class >> 8 in _AUDIO


def is_integrated_gpu(host: Host, function: Function) -> bool:
    """Whether the function is a display controller of the processor itself, which the node uses as its console.

    In a Ryzen it is behind a bridge like any card, in one slot with the processor's cryptography and USB.
    """
    if not is_gpu(function) or function.is_virtual:
        return False
    if not function.bridges:
        return _ON_THE_ROOT_BUS.get(function.vendor_id) == function.address
    return function.vendor_id == AMD and any(other.vendor_id == AMD_PROCESSORS for other in host.slot(function.address))


def is_bmc_screen(function: Function) -> bool:
    """Whether the function is the screen of a server's management controller (BMC), which remote administrators see."""
    return function.pci_id in _BMC_SCREENS


def is_grace_gpu(function: Function) -> bool:
    """Whether the function is the GPU of a Grace superchip. Its guest needs an SMMUv3 with ATS, and NUMA nodes without
    CPUs for the card's memory (KubeVirt's pkg/virt-launcher/virtwrap/converter/grace.go)."""
    return function.vendor_id == NVIDIA and function.device_id in _GRACE


def is_nvswitch(function: Function) -> bool:
    """Whether the function is an NVSwitch, which connects GPUs: a PCI endpoint with the class "other bridge"."""
    return function.vendor_id == NVIDIA and function.pci_class >> 8 == _OTHER_BRIDGE


def is_vfio_driver(driver: str | None) -> bool:
    """Whether the driver is vfio-pci or a variant: nvgrace_gpu_vfio_pci, mlx5_vfio_pci, hisi-acc-vfio-pci."""
    return driver is not None and driver.replace("-", "_").endswith("vfio_pci")


def is_on_vfio(function: Function) -> bool:
    """Whether VFIO has the function, by its own drivers or, for a vGPU of NVIDIA's, by the nvidia driver."""
    if function.driver is None:
        return False
    return is_vfio_driver(function.driver) or (function.vgpu_type is not None and function.driver == "nvidia")


def word(function: Function) -> str:
    """Return the word for the function's class: `audio`, `VGA`, `class 0b40`."""
    base = function.pci_class >> 8
    return "NVSwitch" if is_nvswitch(function) else _CLASS_WORDS.get(base, f"class {base:04x}")


def what(function: Function) -> str:
    """Return the function's address and class: `0000:01:00.1 (audio)`."""
    return f"{function.address} ({word(function)})"
