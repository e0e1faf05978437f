import re
from pathlib import Path

from launcher.vm.checks import OWN_MACHINE
from launcher.vm.cpu.guest import Cell
from launcher.vm.memory.checks import Limits, hugepages, read_pools
from tests.launcher.vm.trees import GIB, MIB, write
from tests.launcher.vms import a_guest

POOL = "kernel/mm/hugepages/hugepages-2048kB"
UNLIMITED = Limits(hugepages={})


def node(directory: Path, *, free: int = 512, reserved: int = 0) -> Path:
    """A /sys with so many free pages of 2 MiB."""
    return write(directory, {f"{POOL}/free_hugepages": f"{free}\n", f"{POOL}/resv_hugepages": f"{reserved}\n"})


def said(
    sys: Path, *, limits: Limits = UNLIMITED, cells: tuple[Cell, ...] = (), mounts: str = "",
    memfd: bool = True, guest_runs: bool = False,
) -> list[str]:  # fmt: skip
    guest = a_guest(page=2 * MIB, is_memfd=memfd)
    found = hugepages(guest, 2 * MIB, cells, read_pools(sys, 2 * MIB, mounts), limits, guest_runs=guest_runs)
    return [f"{finding.problem.subject} {finding.problem.wrong}" for finding in found]


def test_enough_free_pages_are_nothing_to_speak_of(tmp_path: Path) -> None:
    assert said(node(tmp_path / "sys")) == []


def test_pages_that_somebody_has_reserved_are_not_free(tmp_path: Path) -> None:
    assert said(node(tmp_path / "sys", free=512, reserved=12)) == [
        "hugepages of 2 MiB are free for 1000 MiB, and the guest has 1024 MiB"
    ]


def test_the_guest_that_runs_has_its_pages(tmp_path: Path) -> None:
    assert said(node(tmp_path / "sys", free=0), guest_runs=True) == []


def test_a_size_that_the_node_has_not_is_said_with_those_that_it_has(tmp_path: Path) -> None:
    sys = write(tmp_path / "sys", {"kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "4\n"})
    assert said(sys) == ["hugepages of 2 MiB are of no size that this machine has: 1 GiB"]


def test_where_sysfs_says_nothing_of_them_nothing_is_said(tmp_path: Path) -> None:
    assert said(tmp_path / "nothing") == []


def test_a_cell_that_is_bound_needs_its_pages_on_its_node(tmp_path: Path) -> None:
    sys = node(tmp_path / "sys", free=1024)
    for number, free in enumerate((900, 100)):
        write(sys, {f"devices/system/node/node{number}/hugepages/hugepages-2048kB/free_hugepages": str(free)})
    cells = tuple(Cell(vcpus=(number,), memory=GIB // 2, node=number, is_bound=True) for number in (0, 1))
    assert said(sys, cells=cells) == [
        "hugepages of 2 MiB are free for 200 MiB on NUMA node 1, and the guest has 512 MiB of it"
    ]


def test_the_containers_own_limit_counts(tmp_path: Path) -> None:
    """A pod without hugepages in its resources has a limit of 0."""
    limits = Limits(hugepages={2 * MIB: 0})
    assert said(node(tmp_path / "sys"), limits=limits) == [
        "hugepages of 2 MiB are 0 MiB for this container, and the guest has 1024 MiB"
    ]


def test_without_memfd_their_file_system_has_to_be_mounted(tmp_path: Path) -> None:
    sys = node(tmp_path / "sys")
    (without,) = said(sys, memfd=False)
    assert without.startswith("hugepages of 2 MiB are in no file system that is mounted here")
    for mounts in ("nodev /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0\n", "none /h hugetlbfs rw 0 0\n"):
        assert said(sys, memfd=False, mounts=mounts) == []
    other = "nodev /dev/hugepages hugetlbfs rw,relatime,pagesize=1024M 0 0\n"
    assert said(sys, memfd=False, mounts=other) == [without]


def test_on_an_own_machine_no_pod_is_spoken_of(tmp_path: Path) -> None:
    guest, limits = a_guest(page=2 * MIB), Limits(hugepages={2 * MIB: 0})
    other = write(tmp_path / "other", {"kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "4\n"})
    problems = [
        finding.problem
        for sys in (node(tmp_path / "sys", free=0), other)
        for finding in hugepages(
            guest, 2 * MIB, (), read_pools(sys, 2 * MIB, ""), limits, guest_runs=False, wording=OWN_MACHINE
        )
    ]
    assert [problem.fix for problem in problems] == [
        OWN_MACHINE.few_pages,
        OWN_MACHINE.pages_limit,
        OWN_MACHINE.pages_mount,
        OWN_MACHINE.no_pages,
    ]
    assert not any(re.search("pod|container|emptyDir|node", str(problem)) for problem in problems)
