from pathlib import Path

import pytest

from launcher.vm.cpu.facts import assumed, cpuset_of_flag, cpuset_of_pod, processors_of
from launcher.vm.guest import CPUTopology, Guest
from pci.processors import UNKNOWN, NUMANode, Processors
from program.errors import Refusal, UserError

V2 = "fs/cgroup/cpuset.cpus.effective"
V1 = "fs/cgroup/cpuset/cpuset.cpus"


def write(sys: Path, path: str, content: str) -> None:
    (sys / path).parent.mkdir(parents=True)
    (sys / path).write_text(content)


@pytest.mark.parametrize("path", [V2, V1])
def test_the_pods_cpus_are_those_of_its_cgroup(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "2-3,18-19\n")
    assert cpuset_of_pod(tmp_path) == (2, 3, 18, 19)


def test_a_cgroup_without_the_controller_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=f"expected {V2} or {V1}; dedicatedCpuPlacement needs the cpuset controller"):
        cpuset_of_pod(tmp_path)


@pytest.mark.parametrize("content", ["two\n", "0-99999999\n", "\x80"])
def test_a_cgroup_that_says_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, V2, content)
    with pytest.raises(Refusal, match="cannot read the pod's CPUs: "):
        cpuset_of_pod(tmp_path)


def test_a_flag_is_read_as_the_same_list() -> None:
    assert cpuset_of_flag("0-1,8") == (0, 1, 8)
    assert cpuset_of_flag(None) is None


@pytest.mark.parametrize("said", ["", "0-", "all"])
def test_a_flag_that_is_no_list_is_the_users_error(said: str) -> None:
    with pytest.raises(UserError, match="--cpuset: "):
        cpuset_of_flag(said)


def test_processors_that_cannot_be_read_are_a_refusal_by_path(tmp_path: Path) -> None:
    write(tmp_path, "devices/system/node/node0/cpulist", "none")
    with pytest.raises(Refusal, match="devices/system/node/node0/cpulist: 'none' is no list of CPUs"):
        processors_of(tmp_path)


SMT = Processors(
    nodes=(NUMANode(id=0, cpus=(0, 1, 4, 5)), NUMANode(id=1, cpus=(2, 3, 6, 7))), cores=((0, 4), (1, 5), (2, 6), (3, 7))
)


@pytest.mark.parametrize(
    ("given", "node", "cpus", "cores"),
    [
        (None, SMT, (0, 1, 4, 5), SMT.cores),
        ((2, 3, 6, 7), SMT, (2, 3, 6, 7), SMT.cores),
        (None, UNKNOWN, (0, 1, 2, 3), ((0, 1), (2, 3))),
        ((8, 9, 12, 13), UNKNOWN, (8, 9, 12, 13), ((8, 9), (12, 13))),
        ((8, 9, 12, 13), SMT, (8, 9, 12, 13), ((8, 9), (12, 13))),
        (None, Processors(nodes=(NUMANode(id=0, cpus=(0, 1)),)), (0, 1, 2, 3), ((0, 1), (2, 3))),
    ],
)
def test_cpus_that_are_not_known_are_whole_cores_of_the_node_or_of_one_that_has_them(
    given: tuple[int, ...] | None, node: Processors, cpus: tuple[int, ...], cores: tuple[tuple[int, ...], ...]
) -> None:
    found, processors = assumed(Guest(memory=1, cpus=CPUTopology(1, 2, 2)), given, node)
    assert (found, processors.cores) == (cpus, cores)
    assert set(found) <= {cpu for each in processors.nodes for cpu in each.cpus}
