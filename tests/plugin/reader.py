"""A Reader for a test, whose process has threads and so cannot fork one."""

import socket

from plugin.watch.reader import Reader, fork_for_each
from tests.forked import forks


def new_reader() -> Reader:
    """Start its process from the one that tests.forked keeps, which has one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        forks.Process(target=fork_for_each, args=(theirs,), daemon=True).start()
    return Reader(ours)
