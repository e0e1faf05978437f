"""Which vfio driver a function wants: vfio-pci, or the variant that knows the device (Grace's GPUs, ConnectX).

A variant says so as an alias, which depmod writes to modules.alias (kernel Documentation/driver-api/vfio-pci-device-
specific-driver-acceptance.rst); of those that fit, the one with the fewest wildcards is meant, as for libvirt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pci.host import Function
from plugin.errors import Refusal

_ALIASES = "modules.alias"
VFIO_PCI = "vfio_pci"


@dataclass(frozen=True, slots=True)
class Alias:
    """A line of modules.alias: what it fits, `vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*`, and the module."""

    pattern: str
    module: str


def read_aliases(modules: Path) -> tuple[Alias, ...]:
    """The vfio aliases of the kernel whose /lib/modules/RELEASE that is; none where depmod has not been there.

    Refusal where the file cannot be read: a Grace GPU on plain vfio-pci starts, and has no memory.
    """
    path = modules / _ALIASES
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise Refusal(f"{path}: cannot read which variants of vfio-pci there are: {error.strerror}") from error
    return tuple(parse_aliases(lines))


def parse_aliases(lines: Iterable[str]) -> Iterable[Alias]:
    for line in lines:
        match line.split():
            case ["alias", pattern, module] if pattern.startswith(f"{VFIO_PCI}:"):
                yield Alias(pattern, module)


def best_module(function: Function, aliases: Iterable[Alias]) -> str:
    """The module with the most exact alias for this function, `nvgrace_gpu_vfio_pci`; vfio_pci where none fits."""
    wanted = _modalias(function)
    fitting = [alias for alias in aliases if fnmatchcase(wanted, alias.pattern)]
    return min(fitting, key=lambda alias: (alias.pattern.count("*"), alias.module)).module if fitting else VFIO_PCI


def _modalias(function: Function) -> str:
    """As the kernel makes it of the same numbers (pci_uevent in drivers/pci/pci-driver.c), for the vfio drivers."""
    base, sub, interface = (function.pci_class >> shift & 0xFF for shift in (16, 8, 0))
    return (
        f"{VFIO_PCI}:v{function.vendor_id:08X}d{function.device_id:08X}"
        f"sv{function.subsystem_vendor_id:08X}sd{function.subsystem_device_id:08X}"
        f"bc{base:02X}sc{sub:02X}i{interface:02X}"
    )
