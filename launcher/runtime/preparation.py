"""Prepares the start while the plan is made: libvirt's look at QEMU, most of a pod's first start. Nothing else is
imported here, so that the look begins before the rest of the process is there."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass

from launcher.runtime import guest
from launcher.runtime.embedded import prepared, root_of
from launcher.runtime.iommufd import IOMMUFD
from program.errors import ProgramError

_ORPHANED = 30.0  # seconds for libvirt's look once nobody else ends the QEMU that it asks


@dataclass(frozen=True)
class StartPreparation:
    """What is ready for the start before the plan. `root`: the embedded driver's root, locked, if it existed.
    `wait_for_libvirt` waits until libvirt has looked at QEMU; it raises Refusal if libvirt cannot be used, with the
    reason that libvirt gives only once. `leave` is for the end of a process that has lost its supervisor, which would
    end the QEMU that libvirt asks: it waits until libvirt has ended that. `iommufd`: /dev/iommu, opened as root if the
    launcher started as root; None if it could not be opened."""

    root: AbstractContextManager[object] | None = None
    wait_for_libvirt: Callable[[], object] = lambda: None
    leave: Callable[[], object] = lambda: None
    iommufd: IOMMUFD | None = None


def prepare_start(uri: str, iommufd: IOMMUFD | None) -> StartPreparation:
    """Have libvirt find out what QEMU can do, if its root exists already, as in a pod."""
    place = ExitStack()
    with suppress(ProgramError):  # the planner says what is wrong with the URI, and run() with the root
        root = root_of(uri)
        if root is not None and root.is_dir():
            place.enter_context(prepared(root))
            refusals: list[ProgramError] = []

            def look() -> None:
                try:
                    guest.look_at_qemu(uri)
                except ProgramError as refusal:
                    refusals.append(refusal)

            def wait_for_libvirt() -> None:
                thread.join()
                for refusal in refusals:
                    raise refusal

            thread = threading.Thread(target=look, daemon=True)
            thread.start()
            return StartPreparation(place, wait_for_libvirt, lambda: thread.join(_ORPHANED), iommufd)
    return StartPreparation(iommufd=iommufd)
