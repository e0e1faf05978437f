"""A VM on libvirt's test driver, served on a real socket, and who calls there: `gpu-launcher ctl` as a process, or a
caller that our modules have no part in."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import libvirt

from launcher.control.listener import serving_control
from launcher.runtime.vm import VM, Phase, VMIdentity
from tests.launcher.control.lines import Caller
from tests.processes import BIN, ROOT
from tests.waiting import allowed, until

UID = "b1f0bb32-6f0a-4d3e-9d3c-0c6f0f3d7a11"
IDENTITY = VMIdentity("lab", "vm", UID)

_DOMAIN = """
<node><domain type="test"><name>lab_vm</name><memory>65536</memory><vcpu>2</vcpu><os><type>hvm</type></os>
<devices>{devices}</devices>{more}</domain></node>
"""
_SERIAL = '<serial type="unix"><source mode="bind" path="{}"/><target port="0"/></serial>'
#: Of a domain: a GPU with its audio function, and a mediated device.
CARDS = """
<controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-root-port'/><controller type='pci' index='2' model='pcie-root-port'/>
<hostdev mode='subsystem' type='pci' managed='no'><source><address bus='0x41' slot='0' function='0'/></source>
  <alias name='ua-gpu-gpu1'/><address type='pci' domain='0' bus='1' slot='0' function='0' multifunction='on'/></hostdev>
<hostdev mode='subsystem' type='pci' managed='no'><source><address bus='0x41' slot='0' function='1'/></source>
  <address type='pci' domain='0' bus='1' slot='0' function='1'/></hostdev>
<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0'/>
  </source><alias name='ua-dra-hostdevice-my-vgpu'/><address type='pci' bus='2' slot='0' function='0'/></hostdev>
"""


@contextmanager
def on_test_driver(
    directory: Path, console: Path | None = None, more: str = "", devices: str = "", *, asks_nvidia_smi: bool = False
) -> Iterator[VM]:
    """A VM that runs; nobody else has that libvirt. `console` is its serial port, `devices` are others,
    `more` is of its domain's XML. The guest's buses have twice their controllers' numbers."""
    node = directory / "node.xml"
    serial = "" if console is None else _SERIAL.format(console)
    node.write_text(_DOMAIN.format(devices=devices + serial, more=more))
    connection = libvirt.open(f"test://{node}")
    vm = VM(IDENTITY, {bus: 2 * bus for bus in range(10)}, asks_nvidia_smi=asks_nvidia_smi)
    with vm.holding_domain(connection.lookupByName("lab_vm")):
        vm.becomes(Phase.RUNNING)
        yield vm
    connection.close()


@contextmanager
def called(path: Path, vm: VM) -> Iterator[Caller]:
    """The VM served there, and a caller."""
    with serving_control(path, vm):
        yield Caller(path)


@contextmanager
def started(*command: str | Path, **files: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed if it is still there in the end."""
    with subprocess.Popen(command, cwd=ROOT, **files) as process:
        try:
            yield process
        finally:
            process.kill()


def ctl(action: str, path: Path, **files: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return started(BIN / "gpu-launcher", "ctl", action, "--socket", path, **files)


class Heard:
    """What comes out of a file descriptor or socket, in a thread, until it ends."""

    def __init__(self, read: Any) -> None:
        self.data = b""
        self._read = read
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            while data := self._read():
                with self._more:
                    self.data += data
                    self._more.notify_all()

    def comes(self, text: bytes, seconds: float = 1.0) -> bool:
        with self._more:
            return self._more.wait_for(lambda: text in self.data, seconds)

    def wait_for(self, text: bytes, seconds: float = 30) -> None:
        until(lambda: self.comes(text), seconds, lambda: f"no {text!r} in {self.data!r}")

    def ends(self, seconds: float = 30) -> bool:
        self._thread.join(allowed(seconds))
        return not self._thread.is_alive()
