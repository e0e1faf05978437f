"""The command line of `gpu-plugin serve`, the daemon; a child reads it, and `plugin.starting` starts what it says."""

from plugin.starting import Flags


def serve(flags: Flags) -> Flags:
    """Offer the node's devices to the kubelet until SIGTERM. A changed config, or SIGHUP, takes effect at once."""
    return flags
