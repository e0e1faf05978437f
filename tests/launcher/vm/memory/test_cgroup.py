"""The container's limits, in trees as version 2, version 1 and hybrids of cgroups have them."""

from pathlib import Path

import pytest

from launcher.vm.cpu.checks import cpus
from launcher.vm.guest import CPUTopology
from launcher.vm.memory.checks import Limits, memory, read_limits
from program.problem import Severity
from tests.launcher.vm.trees import GIB, MIB, write
from tests.launcher.vms import a_guest


def test_a_container_of_version_2_sees_its_own_limits_at_the_root(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}\n", "cpu.max": "150000 100000\n", "hugetlb.2MB.max": f"{4 * MIB}\n"}
    sys = write(tmp_path, {f"fs/cgroup/{name}": text for name, text in files.items()})
    assert read_limits(sys, "0::/\n") == Limits(memory=GIB, cpus=1.5, hugepages={2 * MIB: 4 * MIB})


def test_a_container_of_version_1_has_them_by_controller(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{GIB}\n",
        "cpu/cpu.cfs_quota_us": "50000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "hugetlb/hugetlb.1GB.limit_in_bytes": f"{GIB}\n",
        "unified/cgroup.procs": "1\n",
    }
    sys = write(tmp_path, {f"fs/cgroup/{name}": text for name, text in files.items()})
    membership = (
        "9:hugetlb:/kubepods/pod1/c\n5:cpu,cpuacct:/kubepods/pod1/c\n4:memory:/kubepods/pod1/c\n0::/kubepods/c\n"
    )
    assert read_limits(sys, membership) == Limits(memory=GIB, cpus=0.5, hugepages={GIB: GIB})


def test_the_least_limit_of_those_above_counts(tmp_path: Path) -> None:
    """Where a process sees more than its own cgroup, the pod's counts as well as the container's."""
    sys = write(
        tmp_path,
        {
            "fs/cgroup/pod/memory.max": str(GIB),
            "fs/cgroup/pod/container/memory.max": str(2 * GIB),
            "fs/cgroup/other/memory.max": "1",
            "fs/cgroup/pod/cpu.max": "max 100000",
            "fs/cgroup/pod/container/cpu.max": "200000 100000",
        },
    )
    assert read_limits(sys, "0::/pod/container\n") == Limits(memory=GIB, cpus=2.0, hugepages={})


@pytest.mark.parametrize("said", ["max", "9223372036854771712", "", "many", "-1", "1e9"])
def test_no_limit_and_what_is_none_is_no_limit(tmp_path: Path, said: str) -> None:
    sys = write(tmp_path, {"fs/cgroup/memory.max": said, "fs/cgroup/cpu.max": said})
    assert read_limits(sys, "0::/\n") == Limits(hugepages={})
    assert read_limits(tmp_path / "nothing", "") == Limits(hugepages={})


def test_a_guest_that_vfio_pins_has_to_fit_below_the_memory_limit() -> None:
    guest = a_guest()
    pinned, grows = (memory(guest, GIB, 256 * MIB, is_pinned=is_pinned) for is_pinned in (True, False))
    assert pinned is not None
    assert grows is not None
    assert (pinned.severity, grows.severity) == (Severity.ERROR, Severity.WARNING)
    assert str(pinned).startswith(
        "the container's memory limit: is 1024 MiB, and the guest takes 1024 MiB, with 256 MiB beside it: VFIO and SEV"
    )
    assert "raise resources.limits.memory" in grows.problem.fix


def test_what_is_beside_the_guest_may_never_be_used_and_is_a_warning() -> None:
    guest = a_guest()
    enough = GIB + 256 * MIB
    assert memory(guest, None, 256 * MIB, is_pinned=True) is memory(guest, enough, 256 * MIB, is_pinned=True) is None
    found = memory(guest, enough - 1, 256 * MIB, is_pinned=True)
    assert found is not None
    assert found.severity is Severity.WARNING


def test_hugepages_count_for_no_memory_limit() -> None:
    guest = a_guest(page=2 * MIB)
    assert memory(guest, 256 * MIB, 256 * MIB, is_pinned=True) is None
    found = memory(guest, 255 * MIB, 256 * MIB, is_pinned=True)
    assert found is not None
    assert "the guest takes 0 MiB, with 256 MiB beside it" in found.problem.wrong


def test_fewer_cpus_than_vcpus_are_a_warning() -> None:
    guest = a_guest(cpus=CPUTopology(1, 4, 1))
    assert cpus(guest, 4.0) is cpus(guest, None) is None
    found = cpus(guest, 1.5)
    assert found is not None
    assert found.severity is Severity.WARNING
    assert found.problem.wrong.startswith("is 1.5 CPUs, and the guest has 4 vCPUs: ")
