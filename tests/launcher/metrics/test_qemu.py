"""The metrics of a guest under QEMU."""

from dataclasses import replace
from pathlib import Path

from launcher.runtime.plan import RunPlan
from launcher.runtime.vm import Phase
from tests.launcher import kernels
from tests.launcher.metrics.scraping import scraping
from tests.launcher.runtime.test_life import heard, living, plan

_DISK = """
<disk type="file" device="disk"><driver name="qemu" type="raw"/><source file="{}"/><target dev="vda" bus="virtio"/>
<alias name="ua-root"/></disk></devices>
"""


def with_disk(plan: RunPlan, disk: Path) -> RunPlan:
    """The same with this disk in it, which is made."""
    disk.write_bytes(bytes(1 << 20))
    return replace(plan, xml=plan.xml.replace("</devices>", _DISK.format(disk)))


def test_a_guest_has_numbers_of_its_cpus_memory_disks_and_agent(embedded_uri: str, tmp_path: Path) -> None:
    planned = with_disk(plan(tmp_path, embedded_uri, kernel=kernels.IGNORES), tmp_path / "disk.img")
    with living(planned) as (vm, changes, _), scraping(vm, planned.xml, Path("/sys")) as scrape:
        heard(changes, Phase.RUNNING)
        found = scrape()
    assert found[("vm_state", "running", "running", "booted")] == 1
    assert found[("resident_memory_bytes", "qemu")] > 10 << 20
    assert ("vcpu_seconds_total", "0") in found
    assert found[("guest_agent_connected",)] == 0
    assert ("disk_written_bytes_total", "root") in found
