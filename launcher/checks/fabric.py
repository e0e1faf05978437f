"""Whether the guest's driver goes with the Fabric Manager that gave its GPUs their NVLinks."""

from collections.abc import Iterator, Mapping

from launcher.checks.finding import error
from launcher.selection.annotations import Word
from pci.resource import FABRIC_MANAGER
from program.finding import Finding


def other_driver(declared: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an error if the driver that the VM declares has another version than the manager, as the pod's variables
    name it."""
    manager = environ.get(FABRIC_MANAGER)
    if declared is not None and manager is not None and declared != manager:
        yield error(
            Word.DRIVER,
            f"is {declared}, and the Fabric Manager of this node is {manager}: CUDA would fail with error 802",
            "install the manager's version in the guest and name it there, or choose by DRA a node that has yours",
        )
