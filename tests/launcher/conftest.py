"""Where KubeVirt has what is a VM's alone, on this machine: a test that starts QEMU makes its sockets there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.running.sockets import socket_directory


@pytest.fixture(scope="session", autouse=True)
def _a_place_for_sockets() -> Iterator[None]:
    """It is there all the while: a test that ends takes it away, and another one may be about to use it."""
    if os.geteuid() != 0:
        yield
        return
    with socket_directory(Path(f"/var/run/kubevirt-private/tests-{os.getpid()}")):
        yield
