"""What a PCI function is, by its class and vendor, and whether VFIO has it."""

from pci.host import Function
from pci.vendors import AMD, NVIDIA

_DISPLAY = 0x03
_PROCESSING_ACCELERATOR = 0x1200
_OTHER_BRIDGE = 0x0680

_CLASS_WORDS = {
    0x0108: "NVMe",
    0x0200: "network",
    0x0207: "InfiniBand",
    0x0300: "VGA",
    0x0302: "3D controller",
    0x0380: "display",
    0x0403: "audio",
    0x0600: "host bridge",
    0x0604: "PCI bridge",
    0x0680: "other bridge",
    0x0C03: "USB",
    0x0C80: "UCSI",
    0x1200: "accelerator",
}


def is_gpu(function: Function) -> bool:
    """Display controllers (class 03xx); AMD's accelerators are processing accelerators (1200)."""
    return function.pci_class >> 16 == _DISPLAY or (
        function.vendor_id == AMD and function.pci_class >> 8 == _PROCESSING_ACCELERATOR
    )


def is_nvswitch(function: Function) -> bool:
    """What connects NVIDIA's GPUs with each other; a bridge to lspci, and an endpoint to PCI."""
    return function.vendor_id == NVIDIA and function.pci_class >> 8 == _OTHER_BRIDGE


def is_vfio_driver(driver: str) -> bool:
    """vfio-pci and its variants for single devices: nvgrace_gpu_vfio_pci, mlx5_vfio_pci, hisi-acc-vfio-pci."""
    return driver.replace("-", "_").endswith("vfio_pci")


def is_on_vfio(function: Function) -> bool:
    """Whether VFIO has it. A virtual function that NVIDIA's driver made a vGPU of is VFIO's through that driver."""
    if function.driver is None:
        return False
    return is_vfio_driver(function.driver) or (function.vgpu_type is not None and function.driver == "nvidia")


def word(function: Function) -> str:
    """`audio`, `VGA`, `class 0b40`."""
    base = function.pci_class >> 8
    return "NVSwitch" if is_nvswitch(function) else _CLASS_WORDS.get(base, f"class {base:04x}")


def what(function: Function) -> str:
    """`0000:01:00.1 (audio)`."""
    return f"{function.address} ({word(function)})"
