"""What a VM's metrics say, and that nobody waits for a libvirt that does not answer."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.metrics.families import families, text_of
from launcher.metrics.listener import serving_metrics
from launcher.metrics.samples import DomainNames, DomainSample, PodSample, sample_pod
from launcher.runtime.operations import VMState
from launcher.runtime.vm import VM, Phase
from pci.address import PCIAddress
from pci.host import Errors
from program.errors import Refusal
from program.ports import HTTPPort
from tests.conftest import Machine
from tests.kernel import aer
from tests.launcher.control.serving import IDENTITY, on_test_driver
from tests.launcher.metrics.scraping import Scrape, read, scraping, whole_page
from tests.processes import ROOT

CARD = PCIAddress(0, 1, 0, 0)
XML = f"""
<domain><devices>
<disk><target dev="vda"/><alias name="ua-root"/></disk>
<interface><target dev="tap1"/><alias name='ua-say "hi"'/></interface><interface/>
<hostdev type="pci"><source><address domain="0x0" bus="0x{CARD.bus}" slot="0x0" function="0x0"/></source></hostdev>
</devices></domain>
"""
#: As libvirt 9.0 tells of a guest, with a tap's numbers beside them (virConnectGetAllDomainStats).
STATISTICS: dict[str, Any] = {
    "balloon.rss": 59632,
    "vcpu.current": 1,
    "vcpu.maximum": 2,
    "vcpu.0.time": 1_500_000_000,
    "net.count": 2,
    "net.1.name": "tap1",
    "net.1.rx.bytes": 4096,
    "block.count": 1,
    "block.0.name": "vda",
    "block.0.rd.reqs": 3,
    "block.0.rd.times": 2_000_000,
}


def told(phase: Phase, domain: DomainSample | None, pod: PodSample | None = None) -> Scrape:
    names = DomainNames({"vda": "root", "tap1": 'say "hi"\n'}, ())
    return read(text_of(families(phase, domain, pod or PodSample({}, None, {}), names, None)))


def test_what_libvirt_tells_is_in_base_units_by_the_manifests_names() -> None:
    found = told(Phase.RUNNING, DomainSample(VMState("paused", "ioerror"), STATISTICS, agent=True))
    assert found.pop(("build_info", *(key[1] for key in found if key[0] == "build_info"))) == 1
    assert found == {
        ("vm_state", "running", "paused", "ioerror"): 1,
        ("sees_libvirt",): 1,
        ("guest_agent_connected",): 1,
        ("vcpu_seconds_total", "0"): 1.5,
        ("disk_reads_total", "root"): 3,
        ("disk_read_seconds_total", "root"): 0.002,
        ("network_received_bytes_total", 'say "hi"\n'): 4096,
        ("resident_memory_bytes", "qemu"): 59632 << 10,
    }


def test_before_the_start_and_without_an_answer_the_phase_is_told() -> None:
    assert ("vm_state", "starting", "", "") in told(Phase.STARTING, None)
    assert ("sees_libvirt",) not in told(Phase.STARTING, None)
    assert told(Phase.STOPPING, None)[("sees_libvirt",)] == 0


def test_the_kernel_tells_of_processes_the_container_and_the_cards_errors(copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    aer(sys, "0000:01:00.0", correctable=3)
    aer(sys, "0000:01:00.1")
    (sys / "bus/pci/devices/0000:01:00.1/aer_dev_fatal").write_bytes(b"\xff")
    (sys / "fs/cgroup").mkdir(parents=True)
    (sys / "fs/cgroup/memory.current").write_text("1048576\n")
    pod = sample_pod(sys, Path("/proc"), [PCIAddress(0, bus, 0, function) for bus in (1, 0xE1) for function in (0, 1)])
    assert (pod.container, pod.errors) == (1 << 20, {CARD: Errors(3, 0, 0)})
    assert 0 < pod.resident["worker"] < 1 << 34
    found = told(Phase.RUNNING, None, pod)
    assert found[("pci_errors_total", "0000:01:00.0", "correctable")] == 3
    assert found[("pci_errors_total", "0000:01:00.0", "fatal")] == 0
    assert found[("container_memory_bytes",)] == 1 << 20


def test_a_page_is_served_while_the_vm_is_there_and_says_what_becomes_of_it(tmp_path: Path) -> None:
    vm = VM(IDENTITY)
    with scraping(vm, XML, tmp_path) as scrape:
        assert ("vm_state", "preparing", "", "") in scrape()
    with on_test_driver(tmp_path) as vm, scraping(vm, XML, tmp_path) as scrape:
        assert ("vm_state", "running", "running", "unknown") in scrape()


class _Silent:
    """A domain of a libvirt that does not answer."""

    def __init__(self) -> None:
        self.answers, self.questions = threading.Event(), 0

    def state(self) -> tuple[int, int]:
        self.questions += 1
        self.answers.wait(30)
        raise Refusal("libvirt", "has ended", "ask no more")


def test_a_libvirt_that_does_not_answer_is_asked_once_and_waited_for_no_longer_than_a_scrape(tmp_path: Path) -> None:
    vm, silent = VM(IDENTITY), _Silent()
    vm.becomes(Phase.RUNNING)
    with vm.holding_domain(silent), scraping(vm, XML, tmp_path) as scrape:
        for _ in range(2):
            found = scrape()
            assert (found[("sees_libvirt",)], found[("vm_state", "running", "", "")]) == (0, 1)
        assert silent.questions == 1
        silent.answers.set()


def test_whoever_scrapes_without_a_pause_gets_two_pages_a_second(tmp_path: Path) -> None:
    """Each page is a question to libvirt, and every pod may scrape."""
    memory, pages = tmp_path / "fs/cgroup/memory.current", set[float]()
    memory.parent.mkdir(parents=True)
    memory.write_text("0")
    with scraping(VM(IDENTITY), XML, tmp_path) as scrape:
        began = time.monotonic()
        for number in range(50):
            memory.write_text(str(number))
            pages.add(scrape()[("container_memory_bytes",)])
        assert len(pages) <= 1 + (time.monotonic() - began) / 0.5
        time.sleep(0.6)
        assert scrape()[("container_memory_bytes",)] == 49, "later ones get a new page"


def test_whoever_scrapes_nothing_pays_for_no_imports() -> None:
    program = (
        "import sys, pathlib\n"
        "from launcher.metrics.listener import serving_metrics\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        "from program.ports import HTTPPort\n"
        "vm, sys_ = VM(VMIdentity('lab', 'vm', '')), pathlib.Path('/sys')\n"
        "with serving_metrics(HTTPPort('127.0.0.1', 0), vm, '', sys_): pass\n"
        "assert not {'h11', 'asyncio', 'libvirt'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_port_that_is_taken_is_refused_by_its_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = HTTPPort("127.0.0.1", taken.getsockname()[1])
        with (
            pytest.raises(Refusal, match=rf"--metrics {port}: cannot serve there: Address already in use"),
            serving_metrics(port, VM(IDENTITY), "", tmp_path),
        ):
            pass


def test_the_page_about_pods_names_each_metric() -> None:
    names = {*re.findall(r"^# TYPE (\w+)", whole_page(), re.MULTILINE)}
    assert {*re.findall(r"`(gpu_launcher_\w+)", (ROOT / "docs/pod.md").read_text())} == names
