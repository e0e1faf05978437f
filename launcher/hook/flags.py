"""The flags of `gpu-launcher hook`, for the process that serves."""

import os
from typing import NamedTuple

SYS = "/sys"
_SOCKETS = "/var/run/kubevirt-hooks"


class ToServe(NamedTuple):
    """The socket to serve on, the directory that stands for /sys, and whether to serve as a plugin or a sidecar."""

    socket: str
    sysfs: str = SYS
    is_plugin: bool = False


def own_socket() -> str:
    """Return a new path where KubeVirt's launcher looks for sidecars, which it tells apart by their sockets' names
    alone."""
    return f"{_SOCKETS}/gpu-launcher-{os.urandom(6).hex()}.sock"
