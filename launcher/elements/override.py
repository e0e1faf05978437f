"""<qemu:override>: properties of QEMU's that libvirt has no element for."""

from collections.abc import Iterator, Mapping

from lxml.builder import ElementMaker
from lxml.etree import _Element as Element

from launcher.peer_to_peer import Property

#: Libvirt's schema domain.rng, qemuoverride; since libvirt 8.2.
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_QEMU = ElementMaker(namespace=_NAMESPACE, nsmap={"qemu": _NAMESPACE})


def override(properties: Mapping[str, tuple[Property, ...]]) -> Iterator[Element]:
    """Yield the element, if any device has a property. They are by the device's alias."""
    devices = [
        _QEMU.device(
            _QEMU.frontend(*(_QEMU.property(name=each.name, type=each.type, value=each.value) for each in its)),
            alias=alias,
        )
        for alias, its in properties.items()
    ]
    if devices:
        yield _QEMU.override(*devices)
