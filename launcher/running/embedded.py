"""Libvirt without daemons: the QEMU driver inside this process, with a root directory of its own.

https://libvirt.org/drvqemu.html#embedded-driver
"""

from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from launcher.errors import Refusal, UserError
from launcher.paths import LIBVIRT_ROOT

#: A pod has one VM, so it has one root.
DEFAULT_URI = f"qemu:///embed?root={LIBVIRT_ROOT}"

# What a container cannot or need not have: virtlogd, security drivers, mount namespaces and cgroups of its own, and
# trusted extended attributes, in which libvirt would remember the owners of files. Debian's libvirt would make another
# user of the TPM's emulator, which cannot look into a directory of ours.
_QEMU_CONF = """\
stdio_handler = "file"
user = "root"
group = "root"
swtpm_user = "root"
swtpm_group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
"""


def is_embedded(uri: str) -> bool:
    """Whether QEMU would be this process's own, and not another libvirt's."""
    parts = _split(uri)
    return (parts.scheme, parts.path) == ("qemu", "/embed")


def has_qemu_here(uri: str) -> bool:
    """Whether QEMU would run on this machine, under whichever libvirt."""
    parts = _split(uri)
    return parts.scheme.partition("+")[0] == "qemu" and parts.hostname is None


def prepare(uri: str) -> None:
    """Make the root of an embedded driver's URI ready; does nothing for any other URI. What is there stays."""
    if not is_embedded(uri):
        return
    for root in parse_qs(_split(uri).query).get("root", []):
        conf = Path(root) / "etc" / "qemu.conf"
        if not conf.is_absolute() or "\0" in root:
            raise UserError(f"--connect {uri}: expected root to be an absolute path, like {DEFAULT_URI}")
        try:
            conf.parent.mkdir(parents=True, exist_ok=True)
            if not conf.exists():
                conf.write_text(_QEMU_CONF)
        except OSError as error:
            raise Refusal(
                f"{root}: cannot make the root of libvirt's embedded driver: {error.strerror}; "
                "expected a directory that can be written, name one with --connect 'qemu:///embed?root=DIR'"
            ) from error


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise UserError(f"--connect {uri}: {error}; expected a URI like {DEFAULT_URI}") from error
