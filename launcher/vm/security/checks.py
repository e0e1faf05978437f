"""Whether a confidential guest can have its reports signed, for a remote party that attests it."""

import errno
from pathlib import Path

from launcher.vm import paths
from launcher.vm.checks import POD, Wording, because, is_missing, opened, warning
from launcher.vm.guest import Guest
from program.finding import Finding


def quotes(guest: Guest, root: Path, wording: Wording = POD) -> Finding | None:
    """Return why QEMU, with this root, cannot reach the service that signs a confidential guest's quotes."""
    if guest.confidentiality is None or (socket := guest.confidentiality.quote_socket) is None:
        return None
    outcome = opened(paths.below(root, socket))
    if outcome == errno.ENXIO:  # open(2) of a socket that the caller may read and write
        return None
    because_of = "is not there" if outcome is None or is_missing(outcome) else f"cannot be opened: {because(outcome)}"
    without = "the guest starts, but gets no quotes by which a remote party attests it"
    return warning(socket, f"{because_of}, and {without}", wording.no_quotes)
