"""What a guest reads of its host on a disk of vhostmd's: as vm-dump-metrics reads it, and from where it is."""

import os
import struct
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher.metrics.downward import guest_metrics, host_metrics, refreshed
from launcher.runtime.vm import Phase
from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.volumes.media import making_media
from launcher.vm.volumes.vhostmd import SIZE, Metric, disk_of, text_of, write_text
from tests.launcher import kernels
from tests.launcher.cases import case
from tests.launcher.metrics.test_metrics import STATISTICS
from tests.launcher.runtime.test_life import heard, living, plan
from tests.launcher.vm.trees import write
from tests.launcher.vm.volumes.pods import needed
from tests.launcher.vms import read_manifest
from tests.waiting import until

MEMINFO = """\
MemTotal:       16000000 kB
MemFree:         1000000 kB
Buffers:          200000 kB
Cached:          3000000 kB
SwapCached:        10000 kB
SwapTotal:       2000000 kB
SwapFree:        1500000 kB
HugePages_Total:       0
"""


def read(disk: bytes) -> dict[tuple[str, str], str]:
    """The values by context and name, as vm-dump-metrics takes them: none of a disk that is being written."""
    signature, is_written, checksum, length = struct.unpack_from(">4sIII", disk)
    text = disk[16 : 16 + length]
    assert signature == b"mvbd"
    if is_written:
        return {}
    assert checksum == sum(text)
    metrics = ElementTree.fromstring(text)
    return {(each.get("context", ""), each.findtext("name", "")): each.findtext("value", "") for each in metrics}


def test_each_metric_has_its_type_context_and_unit() -> None:
    text = text_of([Metric("host", "HostName", "string", "a<b&c"), Metric("vm", "Time", "int64", "1", "s")]).decode()
    assert text.splitlines() == [
        "<metrics>",
        '  <metric type="string" context="host">',
        "    <name>HostName</name>",
        "    <value>a&lt;b&amp;c</value>",
        "  </metric>",
        '  <metric type="int64" context="vm" unit="s">',
        "    <name>Time</name>",
        "    <value>1</value>",
        "  </metric>",
        "</metrics>",
    ]


def test_a_shorter_text_in_place_of_a_longer_one_is_whole(tmp_path: Path) -> None:
    disk = tmp_path / "vhostmd0"
    disk.write_bytes(disk_of(text_of([Metric("host", "HostName", "string", "x" * 1000)])))
    write_text(disk, text_of([Metric("host", "HostName", "string", "y")]))
    assert read(disk.read_bytes()) == {("host", "HostName"): "y"}
    assert disk.stat().st_size == SIZE


def test_no_link_in_place_of_the_disk_is_written_to(tmp_path: Path) -> None:
    """A QEMU that a guest has taken over could put one there."""
    write(tmp_path, {"other": "kept"})
    (tmp_path / "vhostmd0").symlink_to("other")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "vhostmd0", b"")
    assert (tmp_path / "other").read_text() == "kept"


def test_the_hosts_numbers_are_those_of_kubevirts_handler(tmp_path: Path) -> None:
    packages = {f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": f"{cpu % 2}\n" for cpu in range(4)}
    proc = {"stat": "cpu  100 20 30 9999 5\ncpu0 1 2 3 4\n", "meminfo": MEMINFO, "vmstat": "pswpin 10\npswpout 3\n"}
    write(tmp_path, {**packages, **{f"proc/{name}": text for name, text in proc.items()}})
    found = {each.name: each for each in host_metrics("node-1", "qemu-10.0.2", tmp_path / "sys", tmp_path / "proc")}
    assert abs(int(found.pop("Time").value) - time.time()) < 60
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE") // 1024
    assert {(each.name, each.type, each.value, each.unit) for each in found.values()} == {
        ("HostName", "string", "node-1", ""),
        ("HostSystemInfo", "string", "linux", ""),
        ("VirtualizationVendor", "string", "kubevirt.io", ""),
        ("VirtProductInfo", "string", "qemu-10.0.2", ""),
        ("NumberOfPhysicalCPUs", "int64", "2", ""),
        ("TotalCPUTime", "real64", f"{150 / tick:.6f}", "s"),
        ("FreePhysicalMemory", "uint64", "1000000", "KiB"),
        ("FreeVirtualMemory", "uint64", "2500000", "KiB"),
        ("MemoryAllocatedToVirtualServers", "uint64", "11800000", "KiB"),
        ("UsedVirtualMemory", "uint64", "13790000", "KiB"),
        ("PagedInMemory", "uint64", str(10 * page), "KiB"),
        ("PagedOutMemory", "uint64", str(3 * page), "KiB"),
    }


def test_what_cannot_be_read_of_the_host_is_left_out(tmp_path: Path) -> None:
    found = [each.name for each in host_metrics("n", "q", tmp_path, tmp_path)]
    assert found == ["HostName", "HostSystemInfo", "VirtualizationVendor", "VirtProductInfo", "Time"]


def test_the_guests_numbers_are_libvirts() -> None:
    found = {each.name: each.value for each in guest_metrics({**STATISTICS, "balloon.current": 65536})}
    assert found == {
        "TotalCPUTime": "1.500000",
        "ResourceProcessorLimit": "1",
        "PhysicalMemoryAllocatedToVirtualSystem": "65536",
        "ResourceMemoryLimit": "65536",
    }


def test_the_disk_is_there_from_the_start_and_gone_at_the_end(tmp_path: Path) -> None:
    vmi = read_manifest(case("downward-metrics").vm)
    disk = paths.below(tmp_path, paths.DOWNWARD_METRICS)
    with making_media(needed(vmi, Facts(), tmp_path)):
        assert read(disk.read_bytes()) == {}
    assert not disk.exists()


def test_a_running_guests_disk_is_fresh(embedded_uri: str, tmp_path: Path) -> None:
    disk = tmp_path / "vhostmd0"
    disk.write_bytes(disk_of(text_of(())))
    planned = plan(tmp_path, embedded_uri, kernel=kernels.IGNORES)
    with living(planned) as (vm, changes, _), refreshed(disk, "node-1", vm, Path("/sys")):
        heard(changes, Phase.RUNNING)
        until(lambda: read(disk.read_bytes()), 60)
        found = read(disk.read_bytes())
    assert found["host", "HostName"] == "node-1"
    assert found["host", "VirtProductInfo"].startswith("qemu-")
    assert found["vm", "ResourceMemoryLimit"] == str(1 << 20)
    assert int(found["host", "NumberOfPhysicalCPUs"]) >= 1
