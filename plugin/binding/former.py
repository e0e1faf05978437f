"""What the node's functions had before they were bound to vfio, kept in a file; and one binder at a time.

    {"boot": "5f0e...", "functions": {"0000:01:00.1": {"id": "10de:10f9", "driver": "snd_hda_intel", "override": null}}}

A boot undoes every binding, so what another boot wrote is nothing to give back.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pci.address import PCIAddress
from plugin.binding.plan import Binding, Former
from plugin.state_files import write_whole
from program.errors import Refusal

_FILE = "former-drivers.json"
_LOCK = "lock"
_BOOT_ID = "sys/kernel/random/boot_id"


def boot_id(proc: Path) -> str:
    """Return the kernel's ID of this boot; empty if `proc` stands for no real /proc."""
    try:
        return (proc / _BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Keep every other bind and unbind of this node out, and make the directory; Refusal if one is at work.

    The lock is the open file's, which a child that hangs in the kernel has as well: while it does, nobody gets in.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / _LOCK).open("ab")
    except OSError as error:
        raise Refusal(
            state, f"cannot be written: {error.strerror}", "run as root, or name a directory with --state"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                state / _LOCK,
                "another bind or unbind is at work, or hangs in the kernel until a driver lets go",
                "try again when it is done",
            ) from None
        yield


def read_former(state: Path, boot: str) -> Mapping[PCIAddress, Former]:
    """Read the former drivers of this boot; none if nothing was ever written."""
    path = state / _FILE
    try:
        document = json.loads(path.read_text(encoding="ascii"))
        if document["boot"] != boot:
            return {}
        return {
            PCIAddress.parse(address): Former(entry["id"], Binding(entry["driver"], entry["override"]))
            for address, entry in document["functions"].items()
        }
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Refusal(path, f"cannot be read: {error.strerror}", "run as root") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(
            path, "is not what bind wrote", "remove it, and unbind lets the kernel choose the drivers"
        ) from error


def write_former(state: Path, boot: str, former: Mapping[PCIAddress, Former]) -> None:
    """Replace the former drivers, whole or not at all; Refusal if they cannot be written."""
    document = {
        "boot": boot,
        "functions": {
            str(address): {"id": its.pci_id, "driver": its.binding.driver, "override": its.binding.override}
            for address, its in sorted(former.items())
        },
    }
    try:
        # Not synced: whoever loses it to a crash of the node has lost the bindings too.
        write_whole(state / _FILE, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise Refusal(state / _FILE, f"cannot be written: {error.strerror}", "name a directory with --state") from error
