"""What the command line of `gpu-launcher hook` says, for the process that serves."""

from typing import NamedTuple
from uuid import uuid4

SYS = "/sys"
_SOCKETS = "/var/run/kubevirt-hooks"


class ToServe(NamedTuple):
    """What `gpu-launcher hook` is to serve: on this socket, with what stands for /sys, as a plugin or as a sidecar."""

    socket: str
    sysfs: str = SYS
    is_plugin: bool = False


def own_socket() -> str:
    """Return a path for KubeVirt's launcher to find, which knows sidecars by the names of their sockets alone."""
    return f"{_SOCKETS}/gpu-launcher-{uuid4().hex[:12]}.sock"
