"""What the pod was given, against the manifest's entries."""

from collections.abc import Iterable, Iterator

from launcher.checks.finding import Finding, warning
from launcher.claims import LeftOver


def of_left_over(left_over: Iterable[LeftOver]) -> Iterator[Finding]:
    """Devices that the pod holds, so that no other pod can have them, and that nobody gets."""
    for left in left_over:
        devices = ", ".join(map(str, left.devices))
        yield warning(
            left.variable,
            f"has {devices} left over: no entry of gpus or hostDevices asks for what the pod holds",
            "list an entry for each, or let the pod request fewer of its resource; an entry gets one device, also "
            "where a plugin gives several for one request",
        )
