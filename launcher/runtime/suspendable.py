"""What keeps a guest from being suspended: devices that cannot be saved to a file, and disks that end with the pod."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryFile
from xml.etree import ElementTree

from launcher.vm import paths
from launcher.vm.checks import warning
from pci.address import PCIAddress
from program.finding import Finding
from program.problem import Problem

_HEADROOM, _SHARE = 64 << 20, 16  # bytes, and a part of the memory, for the devices' state and the file's own structure
#: Of the grace period of a guest that a drain is to suspend; in the rest the guest shuts down if it cannot be saved.
SHARE_OF_GRACE = 0.5
#: The bytes per second that QEMU saves at most, to a pipe; more than any of docs/figures.md.
QEMU_SPEED = float(2 << 30)
_PROBE, _CHUNK, _PROBED_FOR = 64 << 20, 4 << 20, 1.0  # bytes, bytes, seconds: enough for a cache to show
_WITHOUT_STATE = "vfio-pci"  # the driver for any device; a device's own (mlx5_vfio_pci, nvidia) may know its state
_IN_POD = (paths.OVERLAYS, paths.EMPTY_DISKS)


def needed(memory: int) -> int:
    """Return the bytes that a guest with `memory` bytes of memory may need on the claim."""
    return memory + memory // _SHARE + _HEADROOM


def not_saved(xml: str, sys: Path) -> Iterator[Problem]:
    """Yield a problem for each device of a domain of ours that cannot be saved, as far as its XML and the node's /sys
    show. QEMU and libvirt report further reasons when they are asked to save it (query-migrate's blocked-reasons).
    """
    domain = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    for device in domain.iterfind("devices/hostdev[@type='pci']"):
        address = device.find("source/address")
        if address is None:
            continue
        host = PCIAddress.from_attributes(address.attrib)
        if _driver(sys, host) == _WITHOUT_STATE:
            yield Problem(
                _named(device, str(host)),
                f"{host} is bound to vfio-pci, which cannot tell what is in a device",
                "let the guest hibernate by itself, or give it a vGPU or virtual function whose own driver can migrate",
            )
    for share in domain.iterfind("devices/filesystem"):
        target = share.find("target")
        name = "" if target is None else target.get("dir", "")
        yield Problem(name, "is mounted in the guest by virtiofs, whose state libvirt does not save", "use a disk")
    yield from ends_with_pod(domain)
    if domain.find("launchSecurity") is not None:
        yield Problem("launchSecurity", "nobody but the guest can read its memory", "leave it out, or suspend-to")


def ends_with_pod(domain: ElementTree.Element) -> Iterator[Problem]:
    """Yield a problem for each disk of a domain of ours that the guest writes to and the next pod makes anew."""
    for disk in domain.iterfind("devices/disk"):
        source = disk.find("source")
        file = "" if source is None else source.get("file", "")
        if disk.find("readonly") is None and disk.get("device") != "cdrom" and file.startswith(_IN_POD):
            wrong = f"what the guest writes to it is in {file}, which ends with the pod"
            yield Problem(_named(disk, file), wrong, "expected a disk on a claim")


def suspendable(xml: str, memory: int, sys: Path, claim: Path, grace: int | None = None) -> Iterator[Finding]:
    """Yield a warning for each problem that would keep the VM from being suspended later; it runs all the same.
    `claim`: the directory where the claim for its `memory`, in bytes, is mounted. `grace`: the guest's grace period in
    seconds if a drain is to suspend it; the claim's speed is measured for that."""
    for problem in not_saved(xml, sys):
        yield warning(problem.subject, f"the VM cannot be suspended: {problem.wrong}", problem.fix)
    try:
        status = os.statvfs(claim)
    except OSError as error:
        yield warning(claim, f"the VM cannot be suspended: {error.strerror}", "print its pod anew: gpu-launcher pod")
        return
    if (size := status.f_blocks * status.f_frsize) < needed(memory):
        wrong = f"the claim has {size >> 20} MiB, and suspending the VM may need {needed(memory) >> 20} MiB"
        yield warning(claim, wrong, "make the claim larger")
    if grace is None:
        return
    # libvirt's pipe holds 1 MiB: QEMU and the process that writes to the claim mostly wait for each other.
    finding = too_short(memory, grace) or too_short(memory, grace, 1 / (1 / QEMU_SPEED + 1 / _speed(claim)))
    if finding is not None:
        yield finding


def too_short(memory: int, grace: int, speed: float = QEMU_SPEED) -> Finding | None:
    """Return a warning if a guest with `memory` bytes of memory is not saved in its `grace` period, in seconds, at that
    `speed` in bytes per second; pages of zeros take less."""
    takes = memory / speed
    if takes <= grace * SHARE_OF_GRACE:
        return None
    at = f"{memory >> 20} MiB of memory take {takes:.0f} s to save at {int(speed) >> 20} MiB/s"
    wrong = f"is {grace}: {at}, and saving has half of it; then the guest shuts down instead"
    return warning("spec.terminationGracePeriodSeconds", wrong, f"write {ceil(takes / SHARE_OF_GRACE)} or more")


def _speed(claim: Path) -> float:
    """Measure at how many bytes per second the claim takes a file; infinity if it takes none, which is another
    problem."""
    chunk, written, began = os.urandom(_CHUNK), 0, time.monotonic()
    with suppress(OSError), TemporaryFile(dir=claim, buffering=0) as file:
        while written < _PROBE and time.monotonic() - began < _PROBED_FOR:
            written += file.write(chunk)
            os.fdatasync(file.fileno())
    return written / (time.monotonic() - began) if written else inf


def _named(device: ElementTree.Element, otherwise: str) -> str:
    alias = device.find("alias")
    return otherwise if alias is None else alias.get("name", "").removeprefix("ua-")


def _driver(sys: Path, address: PCIAddress) -> str:
    try:  # without pci.sysfs, which the process beside QEMU does not have
        return (sys / "bus/pci/devices" / str(address) / "driver").readlink().name
    except OSError:
        return ""
