"""gpu-launcher render."""

from launcher.commands.offline import Offline, offline
from program.output import print_text


def render(flags: Offline) -> None:
    """Print the libvirt domain of a VM, and nothing else, on stdout."""
    start = offline(flags)
    assert start.xml is not None, "nothing was refused"
    print_text(start.xml)
