"""The lab's machines in tests/fixtures/sysfs: recorded from a real kernel, and held against it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pci.host import Host
from pci.sysfs.functions import read_host
from tests.lab.lab import Lab
from tests.processes import FIXTURES

_README = """\
Recorded with `gpu-plugin record` in the plugin's pod on the machine {name} of the lab (tests/lab/machine.py): {kernel},
four cards of two functions (bochs-display and intel-hda), an NVMe device with two virtual functions, a USB controller.

`make lab ARGS="--regenerate -k recorded"` records it again.
"""


def check_recorded(lab: Lab, plugin: str, scratch: Path, config: pytest.Config) -> None:
    """Hold the node against its fixture; with --regenerate, make it the fixture."""
    name = f"lab-{lab.node.name}"
    fixture = FIXTURES / "sysfs" / name
    recorded = scratch / name
    lab.record(plugin, recorded)
    if config.getoption("--regenerate"):
        kernel = lab.node.sh("uname -sr").strip()
        (recorded / "README.md").write_text(_README.format(name=lab.node.name, kernel=kernel))
        shutil.rmtree(fixture, ignore_errors=True)
        shutil.copytree(recorded, fixture, symlinks=True)
    assert _lasting(read_host(recorded)) == _lasting(read_host(fixture))


def _lasting(host: Host) -> Host:
    """The host without the numbers of its nodes in /dev/vfio/devices: they go by the order of binding."""
    functions = {
        address: replace(function, vfio_device=function.vfio_device and "vfio")
        for address, function in host.functions.items()
    }
    return replace(host, functions=functions)
