"""<cputune> and <numatune>: which of the host's CPUs and nodes serve which of the guest's."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.cpus.pinning import Cell, Pinning
from launcher.elements import numa
from launcher.guest import Guest
from pci.processors import cpulist


def placement(guest: Guest, pinned: Pinning | None, cells: tuple[Cell, ...]) -> list[Element]:
    elements = []
    if pinned is not None:
        elements.append(_cputune(guest, pinned))
    return [*elements, *numa.numatune(cells)]


def _cputune(guest: Guest, pinned: Pinning) -> Element:
    element = E.cputune(*(E.vcpupin(vcpu=str(vcpu), cpuset=str(at)) for vcpu, at in enumerate(pinned.vcpus)))
    if pinned.emulator:
        element.append(E.emulatorpin(cpuset=_cpuset(pinned.emulator)))
    for thread, cpus in enumerate(pinned.iothreads, start=1):
        element.append(E.iothreadpin(iothread=str(thread), cpuset=_cpuset(cpus)))
    if guest.realtime:
        # KubeVirt's handler does it from outside, to the same end. Here libvirt does, with RLIMIT_RTPRIO.
        element.append(E.vcpusched(vcpus=cpulist(guest.realtime), scheduler="fifo", priority="1"))
    return element


def _cpuset(cpus: tuple[int, ...]) -> str:
    return cpulist(tuple(sorted(cpus)))
