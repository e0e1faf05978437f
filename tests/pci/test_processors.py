from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pci.processors import UNKNOWN, cpulist, parse_cpulist
from pci.sysfs.attribute import Unreadable
from pci.sysfs.processors import read_processors
from tests.compose import Processors, compose
from tests.conftest import Machine


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("8,0-1", (0, 1, 8)), ("5-5", (5,)), ("1,1-2", (1, 2))],
)
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize(
    "text",
    ["a", "1,", ",1", "1-", "-1", "3-1", "0x1", " 1", "1 2", "0-7:1/2", "\u0661", "65536", "0-65536", "0-99999999999"],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (list|range) of CPUs"):
        parse_cpulist(text)


def test_a_list_cannot_be_longer_than_there_are_cpus() -> None:
    with pytest.raises(ValueError, match="is no range of CPUs"):
        parse_cpulist(",".join(["0-65535"] * 2))


@given(st.frozensets(st.integers(0, 300)))
def test_a_list_that_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpulist(cpulist(tuple(sorted(cpus)))) == tuple(sorted(cpus))


def test_cpus_in_a_row_are_a_range() -> None:
    assert cpulist((0, 1, 2, 4, 8, 9)) == "0-2,4,8-9"


def test_two_sockets_are_two_nodes_of_eight_cores_of_two_threads(machine: Machine) -> None:
    found = read_processors(machine("two-rtx-3090"))
    assert [(node.id, cpulist(node.cpus), node.distances) for node in found.nodes] == [
        (0, "0-7,16-23", ((0, 10), (1, 32))),
        (1, "8-15,24-31", ((0, 32), (1, 10))),
    ]
    assert found.cores == tuple((cpu, cpu + 16) for cpu in range(16))


def test_a_record_without_processors_has_none(machine: Machine) -> None:
    assert read_processors(machine("rtx-2060")) == UNKNOWN


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    compose(tmp_path, (), Processors(sockets=2, cores=2))
    return tmp_path


def test_a_kernel_without_numa_is_one_node(sys: Path) -> None:
    (sys / "devices/system/node").rename(sys / "devices/system/nothing")
    (node,) = read_processors(sys).nodes
    assert (node.id, node.cpus, node.distances) == (0, tuple(range(8)), ())


def test_a_cpu_that_is_offline_is_on_no_core_and_no_node(sys: Path) -> None:
    (sys / "devices/system/cpu/cpu3/topology/thread_siblings_list").unlink()
    (sys / "devices/system/cpu/cpu7/topology/thread_siblings_list").write_text("7\n")
    (sys / "devices/system/node/node1/cpulist").write_text("2,6-7\n")
    assert read_processors(sys).cores == ((0, 4), (1, 5), (2, 6), (7,))
    assert read_processors(sys).nodes[1].cpus == (2, 6, 7)


def test_a_node_of_memory_alone_has_no_cpus(sys: Path) -> None:
    (sys / "devices/system/node/node1/cpulist").write_text("\n")
    assert read_processors(sys).nodes[1].cpus == ()


def test_nodes_count_by_number_and_not_by_name(sys: Path) -> None:
    (sys / "devices/system/node/node1").rename(sys / "devices/system/node/node10")
    (sys / "devices/system/node/node0").rename(sys / "devices/system/node/node2")
    assert [node.id for node in read_processors(sys).nodes] == [2, 10]


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("node/node0/cpulist", "all", "devices/system/node/node0/cpulist: 'all' is no list of CPUs"),
        ("node/node0/distance", "10", "devices/system/node/node0/distance: holds '10'; expected 2 distances"),
        ("cpu/cpu0/topology/thread_siblings_list", "0,", "devices/system/cpu/cpu0/topology/thread_siblings_list: '0,'"),
    ],
)
def test_a_file_that_is_broken_is_named(sys: Path, path: str, content: str, problem: str) -> None:
    (sys / "devices/system" / path).write_text(content)
    with pytest.raises(Unreadable, match=problem):
        read_processors(sys)
