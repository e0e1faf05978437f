"""What the tests of several folders share: a place for the VMs' sockets, and libvirt's QEMU driver."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime import guest
from launcher.runtime.sockets import socket_directory
from tests.launcher.guests import a_vm


@pytest.fixture(scope="session", autouse=True)
def _a_place_for_sockets() -> Iterator[None]:
    """Where KubeVirt has what is a VM's alone: a test that starts QEMU makes its sockets there. It is there all the
    while: a test that ends takes it away, and another one may be about to use it."""
    if os.geteuid() != 0:
        yield
        return
    with socket_directory(Path(f"/var/run/kubevirt/sockets/tests-{os.getpid()}")):
        yield


@pytest.fixture(scope="session")
def qemu_driver(embedded_uri: str) -> Iterator[Any]:
    """A connection to libvirt's QEMU driver in this process, which checks addresses; the test driver takes two devices
    on one. One for all tests that need no more: libvirt registers the driver anew for each, until its table is full."""
    with guest.connected(embedded_uri, a_vm()) as connection:
        yield connection
