"""Record a node's sysfs, so that a bug report can become a test: exactly what pci.sysfs reads, links kept.

None of the copied files identifies a single device (serial numbers stand in `config` and `vpd`, which are left out),
so there is nothing to blank.
"""

from pathlib import Path

from pci.sysfs import DEVICES, FILES, IOMMU_GROUPS, LINKS
from plugin.errors import Refusal, UserError


def record(sys: Path, out: Path) -> int:
    """Copy what is read of the tree `sys` to the new or empty directory `out`; the number of functions copied.

    An entry that cannot be read is left as it is found: absent. UserError where `out` has something in it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"{out}: expected a new or empty directory to record into, found files in it")
        functions = sorted((sys / DEVICES).iterdir())
        for function in functions:
            _record_function(sys, out, function)
        for group in sorted((sys / IOMMU_GROUPS).glob("*/devices/*")):
            _copy_link(sys, out, group)
    except OSError as error:
        raise Refusal(f"cannot record {sys} into {out}: {error}") from error
    return len(functions)


def _record_function(sys: Path, out: Path, function: Path) -> None:
    _copy_link(sys, out, function)
    # Through the link: files are kept where the device really is, below devices/pciDDDD:BB.
    place = function.resolve()
    for name in FILES:
        source = place / name
        if source.is_file():
            target = out / source.relative_to(sys.resolve())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    for name in LINKS:
        if (place / name).is_symlink():
            _copy_link(sys.resolve(), out, place / name)


def _copy_link(sys: Path, out: Path, link: Path) -> None:
    target = out / link.relative_to(sys)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(link.readlink())
