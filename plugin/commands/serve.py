"""The command line of `gpu-plugin serve`, the daemon; a child reads it, and `plugin.startup` starts what it says."""

from plugin.startup import ServeFlags
from program.log import LogFlags


def serve(flags: ServeFlags, logs: LogFlags) -> ServeFlags:
    """Offer the node's devices to the kubelet until SIGTERM. A changed config, or SIGHUP, takes effect at once."""
    return flags
