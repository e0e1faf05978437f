"""A kernel that does not answer: the plugin goes on with what it knows, and `doctor` and `inventory` say it.

A FIFO in a function's place for `uevent` stands for the kernels that take the device's lock there. It held up
Allocate of other cards, liveness, SIGTERM and `doctor`, each of them for ever.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pci.sysfs.functions import DEVICES
from plugin.device_plugin.monitoring import LIVE
from plugin.sysfs_child import PATIENCE
from tests.conftest import Command, Machine
from tests.kernel import load, make_nodes
from tests.kubelet import Kubelet
from tests.plugin.cards.test_broken_sysfs import write_machine
from tests.plugin.daemon import BOTH, RTX_3090, free_port, looking, processes, serve, status, wait_until
from tests.plugin.test_sysfs_child import AUDIO, block
from tests.processes import children, holds, kill_all, running
from tests.waiting import allowed

FIRST, SECOND = BOTH
UNKNOWN = f"is unknown, the kernel did not answer for {AUDIO}"


def test_a_function_that_does_not_answer_makes_its_card_unhealthy_and_holds_up_nobody(
    copied_machine: Machine, kubelet: Kubelet
) -> None:
    sys, port = copied_machine("two-rtx-3090"), free_port()
    uevent = sys / DEVICES / AUDIO / "uevent"
    content = uevent.read_text()
    with serve(sys, kubelet.directory, "--health", str(port)) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        before = len(processes(plugin))
        block(sys, f"{DEVICES}/{AUDIO}/uevent")
        slowest = 0.0
        while kubelet.healthy(RTX_3090) != (SECOND,):
            began = time.monotonic()
            assert status(port, LIVE) == 200
            kubelet.allocate_devices(RTX_3090, [SECOND])
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.05)
        assert slowest < allowed(PATIENCE / 2), "nobody waited for it"
        plugin.wait_for_line(f"{FIRST} (GA102 [GeForce RTX 3090]) is unhealthy: it {UNKNOWN}")
        with pytest.raises(grpc.RpcError, match=UNKNOWN):
            kubelet.allocate_devices(RTX_3090, [FIRST])
        # The kernel answers at last: first a file, and then whoever still waits for the FIFO.
        old = os.open(uevent, os.O_RDWR)
        uevent.unlink()
        uevent.write_text(content)
        os.write(old, content.encode())
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        os.close(old)
        wait_until(lambda: len(processes(plugin)) == before)


def test_a_vgpu_whose_driver_does_not_answer_is_refused_and_holds_up_nobody(tmp_path: Path, kubelet: Kubelet) -> None:
    """Before each is handed out, its driver is asked whether it is still of that type."""
    sys, vgpu, l40s = tmp_path / "sys", "0000:44:00.4", "nvidia.com/NVIDIA_L40S-1B"
    write_machine(sys)
    make_nodes(sys, kubelet.directory / "dev", cdevs=True)
    (kubelet.directory / "dev/vfio/devices/vfio90").touch()
    with serve(sys, kubelet.directory, "--rescan", "600") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(l40s) == (vgpu,) and FIRST in kubelet.healthy(RTX_3090))
        kubelet.allocate_devices(l40s, [vgpu])
        block(sys, f"{DEVICES}/{vgpu}/nvidia/current_vgpu_type")
        with ThreadPoolExecutor(1) as elsewhere:
            refused = elsewhere.submit(kubelet.allocate_devices, l40s, [vgpu])
            began = time.monotonic()
            kubelet.allocate_devices(RTX_3090, [FIRST])
            assert time.monotonic() - began < allowed(PATIENCE / 2)
            with pytest.raises(grpc.RpcError, match=f"the kernel did not answer|{vgpu}: "):
                refused.result()
        assert not [line for line in plugin.log if "Traceback" in line]


def test_it_starts_and_ends_beside_a_function_that_does_not_answer(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys, port = copied_machine("two-rtx-3090"), free_port()
    make_nodes(sys, kubelet.directory / "dev")
    block(sys, f"{DEVICES}/{AUDIO}/uevent")
    with serve(sys, kubelet.directory, "--health", str(port), "--rescan", "600") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == (SECOND,))
        wait_until(lambda: status(port, LIVE) == 200)
        wait_until(lambda: len(processes(plugin)) == 3)  # it, the one that forks, and the one that waits
        started = processes(plugin)
        assert not any(holds(pid, signal.SIGTERM) for pid in started)
        began = time.monotonic()
        plugin.send(signal.SIGTERM)
        assert plugin.end() == 0
        assert time.monotonic() - began < allowed(10)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
        assert not [line for line in plugin.log if "Traceback" in line]


def test_it_ends_in_the_middle_of_its_first_look(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys = copied_machine("two-rtx-3090")
    make_nodes(sys, kubelet.directory / "dev")
    block(sys, f"{DEVICES}/{AUDIO}/uevent")
    with serve(sys, kubelet.directory) as plugin:
        wait_until(lambda: len(looking(plugin)) == 1)
        plugin.send(signal.SIGTERM)
        assert plugin.end() == 0
        assert plugin.log == []


def test_a_plugin_that_can_read_nothing_any_more_ends_and_says_so(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--rescan", "600") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        wait_until(lambda: len(processes(plugin)) == 2)
        (reader,) = processes(plugin) - {plugin.process.pid}
        os.kill(reader, signal.SIGKILL)
        assert plugin.end() == 1
        assert "ERROR the process that reads sysfs: was killed" in plugin.log[-1]


@pytest.mark.parametrize("path", ["bus/pci/devices", "kernel/iommu_groups"])
def test_a_directory_of_sysfs_that_cannot_be_listed_leaves_what_was_seen_last(
    copied_machine: Machine, kubelet: Kubelet, path: str
) -> None:
    """An error there, like EMFILE anywhere, had the kubelet told that all cards are gone."""
    sys = copied_machine("two-rtx-3090")
    with serve(sys, kubelet.directory, "--rescan", "0.1") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        (sys / path).rename(sys / "away")
        (sys / path).symlink_to(Path(path).name)
        plugin.wait_for_line("the node's inventory stays as it was")
        assert kubelet.healthy(RTX_3090) == BOTH
        (sys / path).unlink()
        (sys / "away").rename(sys / path)
        plugin.wait_for_line("the node can be looked at again")
        assert not [line for line in plugin.log if "is gone" in line]


def test_the_doctor_and_the_inventory_say_what_does_not_answer(copied_machine: Machine, gpu_plugin: Command) -> None:
    sys = copied_machine("two-rtx-3090")
    block(sys, f"{DEVICES}/{AUDIO}/uevent")
    page = gpu_plugin("doctor", "--sysfs", sys)
    assert page.returncode == 4
    said = " ".join(page.stdout.split())
    assert f"{DEVICES}/{AUDIO}/uevent: unknown, the kernel did not answer" in said
    assert f"{FIRST}: {UNKNOWN}" in said
    assert "end that one" in said
    table = gpu_plugin("inventory", "--sysfs", sys)
    rows = " ".join(table.stdout.split())
    assert f"unhealthy: {UNKNOWN}" in rows
    assert f"not read: {DEVICES}/{AUDIO}/uevent: the kernel did not answer" in rows
    assert not page.stderr + table.stderr


def test_a_look_from_close_by_may_be_silent_too(copied_machine: Machine, gpu_plugin: Command, tmp_path: Path) -> None:
    sys = copied_machine("two-rtx-3090")
    block(sys, f"{DEVICES}/{AUDIO}/driver_override")  # takes the device's lock in every kernel
    page = gpu_plugin("doctor", "--sysfs", sys)
    said = " ".join(page.stdout.split())
    assert f"{DEVICES}/{AUDIO}/driver_override: unknown, the kernel did not answer" in said
    recorded = gpu_plugin("record", tmp_path / "record", "--sysfs", sys)
    assert recorded.returncode == 0
    assert recorded.stderr.endswith("driver_override: the kernel did not answer\n")
    assert (tmp_path / "record" / DEVICES / AUDIO / "uevent").exists()
    bound = gpu_plugin("bind", FIRST, "--dry-run", "--sysfs", sys)
    assert bound.returncode == 1
    assert "driver_override: the kernel did not answer" in bound.stderr


def test_a_write_that_hangs_in_the_kernel_holds_up_neither_the_plugin_nor_the_doctor(
    copied_machine: Machine, kubelet: Kubelet, gpu_plugin: Command, tmp_path: Path
) -> None:
    """An unbind below a guest that runs: `bind` hangs in its write, and that function's uevent with it."""
    machine = copied_machine("two-rtx-3090")
    sys = machine.rename(tmp_path / "sys")
    make_nodes(sys, kubelet.directory / "dev")
    load(sys, "vfio-pci")
    (tmp_path / "proc").mkdir()
    (state := tmp_path / "state").mkdir()
    unbind = (sys / DEVICES / FIRST / "driver/unbind").resolve()
    with serve(sys, kubelet.directory) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        unbind.unlink(missing_ok=True)
        os.mkfifo(unbind)
        with running("gpu-plugin", "unbind", FIRST, "--sysfs", sys, "--state", state, "--dra-state", state) as binding:
            wait_until(lambda: (state / "journal.json").exists())
            block(sys, f"{DEVICES}/{AUDIO}/uevent")
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == (SECOND,))
            kubelet.allocate_devices(RTX_3090, [SECOND])
            page = gpu_plugin("doctor", "--sysfs", sys)
            assert "unknown, the kernel did not answer" in " ".join(page.stdout.split())
            busy = gpu_plugin("bind", SECOND, "--sysfs", sys, "--state", state)
            assert "another bind or unbind is at work" in busy.stderr
            plugin.send(signal.SIGTERM)
            assert plugin.end() == 0
            kill_all(children(binding.process.pid))  # which nothing else would end
