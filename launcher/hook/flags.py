"""What the command line of `gpu-launcher hook` says, for the process that serves."""

from typing import NamedTuple


class ToServe(NamedTuple):
    """What `gpu-launcher hook` is to serve: on this socket, with what stands for /sys, as a plugin or as a sidecar."""

    socket: str
    sysfs: str
    is_plugin: bool
