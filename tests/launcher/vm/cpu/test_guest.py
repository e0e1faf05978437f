"""What holds of every pod on every machine; what comes of some is in the golden domains."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.vm.cpu.guest import Pinning, cells, cells_of_nodes, pin
from launcher.vm.facts import Facts
from launcher.vm.guest import CPUTopology, Guest
from pci.processors import NUMANode, Processors
from program.errors import UserError

PAGE = 2 << 20


def machine(sockets: int, cores: int, threads: int) -> Processors:
    """CPUs count through all cores first, then through their second threads."""
    every = sockets * cores
    siblings = tuple(tuple(range(core, every * threads, every)) for core in range(every))
    return Processors(
        nodes=tuple(
            NUMANode(id=node, cpus=tuple(sorted(chain(*siblings[node * cores : (node + 1) * cores]))))
            for node in range(sockets)
        ),
        cores=siblings,
    )


HOSTS = st.builds(machine, st.integers(1, 4), st.integers(1, 6), st.integers(1, 2))


@st.composite
def pods(draw: st.DrawFn) -> tuple[Processors, tuple[int, ...], Guest]:
    host = draw(HOSTS)
    every = [cpu for node in host.nodes for cpu in node.cpus]
    cpus = tuple(sorted(draw(st.sets(st.sampled_from(every), min_size=1))))
    guest = Guest(
        memory=1 << 30,
        cpus=CPUTopology(1, draw(st.integers(1, 8)), draw(st.integers(1, 2))),
        emulator_cpus=draw(st.integers(0, 2)),
        iothread_pool=draw(st.integers(0, 3)),
        iothreads=draw(st.integers(0, 10)),
    )
    return host, cpus, guest


def with_numa(cores: int, threads: int) -> Guest:
    return Guest(memory=1 << 30, cpus=CPUTopology(1, cores, threads), passes_numa_through=True)


@given(pods())
def test_everything_gets_a_cpu_of_the_pods_that_nothing_else_has(
    pod: tuple[Processors, tuple[int, ...], Guest],
) -> None:
    host, cpus, guest = pod
    needed = guest.vcpus + guest.iothread_pool + guest.emulator_cpus
    if needed > len(cpus):
        with pytest.raises(UserError, match=f"needs {needed} CPUs .* and the pod has {len(cpus)} "):
            pin(guest, cpus, host)
        return
    pinned = pin(guest, cpus, host)
    pool = [cpu for thread in pinned.iothreads for cpu in thread] if guest.iothread_pool else []
    own = [*pinned.vcpus, *pinned.emulator, *pool]
    assert len(own) == len(set(own)) == needed
    assert set(own) <= set(cpus)
    assert len(pinned.iothreads) == (guest.iothread_pool or guest.iothreads)
    assert all(thread and set(thread) <= set(cpus) for thread in pinned.iothreads)


@given(pods())
def test_a_core_is_split_over_nodes_only_where_it_may_be(pod: tuple[Processors, tuple[int, ...], Guest]) -> None:
    host, cpus, guest = pod
    _, cores, threads = guest.cpus
    alone = with_numa(cores, threads)
    of_nodes = [set(cpus) & set(node.cpus) for node in host.nodes]
    if sum(len(of_node) // threads for of_node in of_nodes) < cores:
        with pytest.raises(UserError, match=r"CPUs of one NUMA node in the pod|the guest needs"):
            pin(alone, cpus, host)
        return
    served = zip(*[iter(pin(alone, cpus, host).vcpus)] * threads, strict=True)
    assert all(any(set(core) <= of_node for of_node in of_nodes) for core in served)


def test_on_an_own_machine_its_cpus_are_too_few_and_no_pods() -> None:
    host = Processors(nodes=(NUMANode(id=0, cpus=(0, 1)), NUMANode(id=1, cpus=(2, 3))), cores=((0, 1), (2, 3)))
    for guest, cpus, wrong in (
        (with_numa(4, 2), (0, 1, 2, 3), "the guest needs 8 CPUs .8 vCPUs., and this machine has 4 "),
        (with_numa(1, 2), (0, 2), "find no 2 CPUs of one NUMA node in this machine"),
    ):
        with pytest.raises(UserError, match=f"{wrong}.*; give the guest fewer cores or threads$"):
            pin(guest, cpus, host, in_pod=False)


@given(HOSTS, st.integers(1, 24))
def test_on_whole_cores_the_threads_of_a_core_are_those_of_one_of_the_hosts(host: Processors, cores: int) -> None:
    cores = min(cores, len(host.cores))
    threads = len(host.cores[0])
    cpus = tuple(sorted(cpu for core in host.cores[:cores] for cpu in core))
    pinned = pin(with_numa(cores, threads), cpus, host)
    served = zip(*[iter(pinned.vcpus)] * threads, strict=True)
    assert {tuple(sorted(core)) for core in served} == set(host.cores[:cores])


@given(pods(), st.integers(0, 200))
def test_the_cells_have_all_vcpus_and_all_pages_and_none_has_two_more_than_another(
    pod: tuple[Processors, tuple[int, ...], Guest], pages: int
) -> None:
    host, _, _ = pod
    vcpus = tuple(cpu for node in host.nodes for cpu in node.cpus)
    pinned = Pinning(vcpus=vcpus, emulator=(), iothreads=())
    if pages < len(host.nodes):
        with pytest.raises(UserError, match="too few for a hugepage of 2097152 in each of the guest's"):
            cells(pinned, host.nodes, pages * PAGE, PAGE)
        return
    found = cells(pinned, host.nodes, pages * PAGE, PAGE)
    assert sorted(vcpu for cell in found for vcpu in cell.vcpus) == list(range(len(vcpus)))
    parts = [cell.memory // PAGE for cell in found]
    assert sum(parts) == pages
    assert max(parts) - min(parts) <= 1
    assert all(cell.memory % PAGE == 0 for cell in found)


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 20), st.integers(1, 2), st.integers(0, 1 << 34))
def test_cells_for_nodes_without_pinned_cpus_have_whole_cores_and_all_of_the_memory(
    nodes: set[int], cores: int, threads: int, more: int
) -> None:
    memory = (1 << 30) + more
    guest = Guest(memory=memory, cpus=CPUTopology(1, cores, threads))
    found = cells_of_nodes(guest, None, Facts(), tuple(sorted(nodes)))
    assert [cell.node for cell in found] == sorted(nodes)
    assert [vcpu for cell in found for vcpu in cell.vcpus] == list(range(cores * threads))
    shares = [len(cell.vcpus) // threads for cell in found]
    assert all(len(cell.vcpus) % threads == 0 for cell in found)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1
    assert sum(cell.memory for cell in found) == memory
    assert max(cell.memory for cell in found) - min(cell.memory for cell in found) < 2 << 20
    assert all(cell.memory % (1 << 20) == 0 for cell in found[1:])


def test_io_threads_run_beside_the_emulator_where_it_has_its_own_cpus() -> None:
    guest = Guest(memory=1 << 30, cpus=CPUTopology(1, 2, 1), emulator_cpus=1, iothreads=2)
    pinned = pin(guest, (0, 1, 2), machine(1, 4, 1))
    assert (pinned.emulator, pinned.iothreads) == ((2,), ((2,), (2,)))


@pytest.mark.parametrize("distances", [((0, 10), (1, 9)), ((0, 10), (1, 256)), ((0, 10),), ()])
def test_distances_that_libvirt_would_refuse_are_left_out(distances: tuple[tuple[int, int], ...]) -> None:
    nodes = tuple(NUMANode(id=node, cpus=(node,), distances=distances) for node in range(2))
    pinned = Pinning(vcpus=(0, 1), emulator=(), iothreads=())
    assert [cell.distances for cell in cells(pinned, nodes, 2 * PAGE, PAGE)] == [(), ()]


def test_distances_are_those_between_the_nodes_that_serve_the_guest() -> None:
    far = ((0, 10), (2, 20), (7, 30))
    nodes = tuple(NUMANode(id=node, cpus=(node,), distances=far) for node in (0, 2, 7))
    pinned = Pinning(vcpus=(7, 0), emulator=(), iothreads=())
    found = cells(pinned, nodes, 3 * PAGE, PAGE)
    assert [(cell.node, cell.vcpus, cell.memory // PAGE) for cell in found] == [(0, (1,), 2), (7, (0,), 1)]
    assert [cell.distances for cell in found] == [(10, 30), (10, 30)]
