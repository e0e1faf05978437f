"""<cpu> and the number of vCPUs."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.cpu import placement
from launcher.vm.cpu.guest import Cell
from launcher.vm.facts import Facts
from launcher.vm.features.xml import needed_of_the_cpu
from launcher.vm.guest import Guest
from launcher.vm.guest_pci import xml as guest_pci
from launcher.vm.guest_pci.bars import Hole
from launcher.vm.spec import Domain

_HOST_MODES = ("host-model", "host-passthrough")
_DEFAULT_MODEL = {"amd64": "host-model", "arm64": "host-passthrough"}


def cpu(domain: Domain, guest: Guest, facts: Facts, cells: tuple[Cell, ...], hole: Hole | None) -> Element:
    sockets, cores, threads = guest.cpus
    element = _model(domain.cpu.model, guest, facts)
    element.append(E.topology(sockets=str(sockets), cores=str(cores), threads=str(threads)))
    element.extend(guest_pci.maxphysaddr(hole, element.get("mode")))
    element.extend(placement.numa(cells))
    element.extend(_features(domain, guest))
    return element


def _model(name: str | None, guest: Guest, facts: Facts) -> Element:
    model = name or _DEFAULT_MODEL[guest.architecture]
    if model not in _HOST_MODES:
        return E.cpu(E.model(model), mode="custom", match="exact")
    if not facts.kvm and (model == "host-passthrough" or guest.architecture == "arm64"):
        # QEMU's own CPU passes none of the host's through: it gets all that QEMU can emulate.
        return E.cpu(E.model("max"), mode="custom", match="exact")
    return E.cpu(mode=model)


def _features(domain: Domain, guest: Guest) -> list[Element]:
    cpu = domain.cpu
    needed = needed_of_the_cpu(domain.features)
    kept = [feature for feature in cpu.features if feature.name not in needed]
    elements = [E.feature(name=feature.name, policy=feature.policy) for feature in kept]
    elements += [E.feature(name=name, policy="require") for name in needed]
    named = cpu.model is not None and cpu.model not in _HOST_MODES
    if guest.architecture == "amd64" and named and all(feature.name != "mpx" for feature in cpu.features):
        # Libvirt's models have it and processors have it no longer: https://gitlab.com/libvirt/libvirt/-/issues/304
        elements.append(E.feature(name="mpx", policy="disable"))
    return elements
