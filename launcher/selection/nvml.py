"""NVML's UUIDs, which only NVIDIA's driver knows: which card of a cluster has one that a VM's annotation names."""

from launcher.selection.annotations import USE_ID, Selection
from launcher.selection.cluster import Cluster, PublishedDevice
from pci import slices as words
from pci.vendors import NVIDIA
from program.errors import UserError
from program.problem import listed

_MOST = 3  # cards that are named
_PAGE = "docs/choosing.md#nvmls-uuids"


def refuse_unknown_ids(selection: Selection, cluster: Cluster | None) -> None:
    """UserError for an NVML UUID that no card is known to have, if one may have it: the VM would wait without end, or
    get the card that it excludes. Without a cluster no card's UUID is known.

    A UUID that is excluded, and that no card has, excludes nothing rightly.
    """
    for name, ids in selection.nvml_ids.items():
        if cluster is None:
            wrong = f"{name} names {listed(ids, _MOST)}, and which card has NVML's UUID is not known here"
            fix = f"name a file of what `kubectl get resourceslices -o json` prints with --cluster ({_PAGE})"
            raise UserError("metadata.annotations", wrong, fix)
        cards = [(node.name, device) for node in cluster.nodes for device in node.devices if _has_uuid(device)]
        known = {device.attribute(words.NVML_UUID) for _, device in cards}
        missing = [each for each in ids if each not in known]
        unknown = [f"{device.id.name} of {node}" for node, device in cards if not device.attribute(words.NVML_UUID)]
        if missing and unknown:
            raise UserError(
                "metadata.annotations",
                f"{name} names {listed(missing, _MOST)}, which may be of one of these, whose NVML UUID is not known: "
                f"{listed(unknown, _MOST)}",
                f"run nvidia-smi -L while NVIDIA's driver has the card, then gpu-plugin bind ({_PAGE})",
            )
        if name == USE_ID and len(missing) == len(selection.use_ids or ()):
            wrong = f"{name} names {listed(missing, _MOST)}, which no card of the cluster has"
            raise UserError("metadata.annotations", wrong, "see what `gpu-launcher fit` prints without the annotation")


def _has_uuid(device: PublishedDevice) -> bool:
    """Whether NVML has a UUID for the device: it is a GPU of NVIDIA's, and no NVSwitch or virtual function."""
    is_card = (device.id.driver, device.attribute(words.VENDOR)) == (words.DRIVER, f"{NVIDIA:04x}")
    is_switch = "NVSwitch" in str(device.attribute(words.PRODUCT))
    return is_card and device.attribute(words.TYPE) == "card" and not is_switch
