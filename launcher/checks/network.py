"""What a manifest asks of its network, and gets otherwise or not at all; the guest starts all the same."""

from collections.abc import Iterable, Iterator

from launcher.checks.finding import warning
from launcher.manifest.devices import Devices
from launcher.network.attachments import PROTOCOLS, Attached, PasstAttachment
from program.finding import Finding

_DEVICES = "spec.domain.devices"


def not_tuned(devices: Devices) -> Iterator[Finding]:
    """A warning for each such field."""
    if devices.networkInterfaceMultiqueue and devices.connected:
        yield warning(
            f"{_DEVICES}.networkInterfaceMultiqueue",
            "passt has one pair of queues for each card",
            "leave it out, or pass a virtual function on where one pair is too slow",
        )
    for index, interface in enumerate(devices.interfaces):
        if interface.dhcpOptions is None or interface.state == "absent":
            continue
        for name, value in interface.dhcpOptions:
            if value:
                yield warning(
                    f"{_DEVICES}.interfaces[{index}].dhcpOptions.{name}",
                    "passt's DHCP server has no such option",
                    "set it in the guest, with cloud-init for example, or leave it out",
                )


def reached_elsewhere(cards: Iterable[Attached]) -> Iterator[Finding]:
    """A warning for each card whose ports, which are listed, reach the guest at an earlier one."""
    for card in cards:
        listed = card.to.forwards.listed if isinstance(card.to, PasstAttachment) else None
        if listed is None or not isinstance(card.to, PasstAttachment):
            continue
        if any(card.to.forwards.ranges(protocol) != listed.get(protocol, ()) for protocol in PROTOCOLS):
            yield warning(
                f"interface {card.interface.name!r}",
                "lists ports that an earlier interface has: whichever of the pod's addresses they come to, they reach "
                "the guest there",
                "list the ports of each interface, each port once",
            )
