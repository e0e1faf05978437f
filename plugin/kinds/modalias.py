"""The vfio driver of a function: vfio-pci, or a variant for the device (Grace's GPUs, ConnectX).

A variant has aliases in modules.alias, which depmod writes (kernel Documentation/driver-api/vfio-pci-device-
specific-driver-acceptance.rst). As in libvirt, the alias with the fewest wildcards wins.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pci.host import Function
from program.errors import Refusal

VFIO_PCI = "vfio_pci"


@dataclass(frozen=True, slots=True)
class Alias:
    """A line of modules.alias: the pattern, `vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*`, and the module."""

    pattern: str
    module: str


def read_aliases(modules: Path) -> tuple[Alias, ...]:
    """Read the vfio aliases in a kernel's /lib/modules/RELEASE; none if depmod has not written them.

    Refusal if the file cannot be read: on plain vfio-pci a Grace GPU would start without its memory.
    """
    path = modules / "modules.alias"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        wrong = f"cannot read which variants of vfio-pci there are: {error.strerror}"
        raise Refusal(path, wrong, "run depmod, or make the file readable") from error
    return tuple(parse_aliases(lines))


def parse_aliases(lines: Iterable[str]) -> Iterable[Alias]:
    for line in lines:
        match line.split():
            case ["alias", pattern, module] if pattern.startswith(f"{VFIO_PCI}:"):
                yield Alias(pattern, module)


def best_module(function: Function, aliases: Iterable[Alias]) -> str:
    """Return the module with the most exact alias for this function, `nvgrace_gpu_vfio_pci`; vfio_pci if none fits."""
    modalias = _modalias(function)
    fitting = [alias for alias in aliases if fnmatchcase(modalias, alias.pattern)]
    return min(fitting, key=lambda alias: (alias.pattern.count("*"), alias.module)).module if fitting else VFIO_PCI


def _modalias(function: Function) -> str:
    """Return the function's modalias for the vfio drivers, as the kernel makes it (pci_uevent in
    drivers/pci/pci-driver.c)."""
    base, sub, interface = (function.pci_class >> shift & 0xFF for shift in (16, 8, 0))
    return (
        f"{VFIO_PCI}:v{function.vendor_id:08X}d{function.device_id:08X}"
        f"sv{function.subsystem_vendor_id:08X}sd{function.subsystem_device_id:08X}"
        f"bc{base:02X}sc{sub:02X}i{interface:02X}"
    )
