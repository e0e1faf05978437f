"""Record a node's sysfs, so that a bug report can become a test: exactly what pci.sysfs reads, links kept.

None of the copied files identifies a single device (serial numbers stand in `config` and `vpd`, which are left out),
so there is nothing to blank.
"""

from pathlib import Path

from pci.sysfs import DEVICES, FILES, GROUP_NAME, IOMMU_GROUPS, LINKS, NotSysfs, require_sysfs
from plugin.errors import Refusal, UserError


def record(sys: Path, out: Path) -> int:
    """Copy what is read of the tree `sys` to the new or empty directory `out`; the number of functions copied.

    What cannot be read, or leads out of the tree, is left out: broken trees are what bug reports are about. UserError
    where `out` has something in it or cannot be made.
    """
    try:
        require_sysfs(sys)
    except NotSysfs as error:
        raise Refusal(str(error)) from error
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"{out}: expected a new or empty directory to record into, found files in it")
    except OSError as error:
        raise UserError(f"{out}: cannot record into it: {error.strerror}; expected a new or empty directory") from error
    functions = sorted((sys / DEVICES).iterdir())
    for function in functions:
        _record_function(sys, out, function)
    for group in sorted((sys / IOMMU_GROUPS).glob("*")):
        _copy_file(sys, out, group / GROUP_NAME)
        for member in sorted((group / "devices").glob("*")):
            _copy_link(sys, out, member)
    return len(functions)


def _record_function(sys: Path, out: Path, function: Path) -> None:
    _copy_link(sys, out, function)
    try:
        # Through the link: files are kept where the device really is, below devices/pciDDDD:BB.
        place = sys / function.resolve().relative_to(sys.resolve())
    except (OSError, RuntimeError, ValueError):
        return  # a link in a circle, or out of the tree
    for name in FILES:
        _copy_file(sys, out, place / name)
    for name in LINKS:
        _copy_link(sys, out, place / name)


def _copy_file(sys: Path, out: Path, source: Path) -> None:
    try:
        content = source.read_bytes()
    except OSError:
        return
    _place(sys, out, source).write_bytes(content)


def _copy_link(sys: Path, out: Path, link: Path) -> None:
    try:
        target = link.readlink()
    except OSError:
        return
    _place(sys, out, link).symlink_to(target)


def _place(sys: Path, out: Path, source: Path) -> Path:
    place = out / source.relative_to(sys)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
