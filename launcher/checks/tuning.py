"""What a manifest asks of its network that only tunes it, and that passt cannot do."""

from collections.abc import Iterator

from launcher.checks.finding import Finding, warning
from launcher.manifest.devices import Devices

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
