"""gpu-launcher pod."""

import re
from importlib.metadata import version
from typing import Annotated

import typer

from launcher.commands.options import VM, BlockVolume, refuse_other_volumes
from launcher.manifest.reading import read_given
from launcher.pod.documents import documents
from launcher.pod.objects import objects
from pci.resource import NODE_DEVICES
from program.errors import UserError
from program.output import print_text


def pod(
    vm: VM,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="The launcher's image.  [default: gpu-launcher of this version]"),
    ] = None,
    block_volume: BlockVolume = None,
    node_devices: Annotated[
        str,
        typer.Option(
            "--node-devices", metavar="DOMAIN", help="The domain of the resources that are /dev/kvm and the like."
        ),
    ] = NODE_DEVICES,
) -> None:
    """Print the Pod that runs a VM, and what it needs, for `kubectl apply -f -`."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", node_devices):
        raise UserError(f"--node-devices {node_devices}", "is no domain", f"expected one like {NODE_DEVICES}")
    if image is not None and not re.fullmatch(r"[!-~]+", image):
        raise UserError(f"--image {image}", "is no image", "expected one like registry.example.com/gpu-launcher:1.0")
    given = read_given(vm)
    refuse_other_volumes(given.instance, {"--block-volume": block_volume})
    made = objects(
        given,
        image=image or f"gpu-launcher:{version('gpu-launcher')}",
        block=frozenset(block_volume or []),
        node_devices=node_devices,
    )
    print_text(documents(made))
