"""passt with the options that libvirt's XML has no words for.

libvirt looks for a program `passt` on PATH (src/qemu/qemu_passt.c) and passes on what an <interface> says: addresses,
the IPv4 netmask, ports and the pod's interface. Neither 9.0 nor 11.3 can name a gateway: the guest would have the
pod's, which is not in its subnet; and where the pod has none on an interface, passt has no DHCP there. So what libvirt
finds first is a script of a few lines that calls passt with them.
"""

from collections.abc import Iterable

from launcher.network.attachments import Attached, PasstAttachment

_SCRIPT = """\
#!/bin/sh
# passt as libvirt calls it, with what libvirt has no words for. gpu-launcher writes this at the start of a VM.
PATH=${{PATH#*:}}  # without the directory of this file, which is the first
case " $* " in
{cases}esac
exec passt "$@" --no-map-gw
"""
_CASE = """\
*" {option} "*) set -- "$@" {gateways} ;;
"""


def script(cards: Iterable[Attached]) -> str | None:
    """Return what is to be called for passt, as the text of a program; None where no card needs one.

    --no-map-gw: passt would take a guest to the pod's loopback by the gateway's address, where only the pod's own
    containers are meant to be. A card is told from the others by the one option that it alone has.
    """
    by_passt = [card.to for card in cards if isinstance(card.to, PasstAttachment)]
    if not by_passt:
        return None
    return _SCRIPT.format(cases="".join(map(_case, by_passt)))


def _case(to: PasstAttachment) -> str:
    if to.addresses:
        gateways = " ".join(f"--gateway {address.gateway}" for address in to.addresses)
        return _CASE.format(option=f"--address {to.addresses[0].guest}", gateways=gateways)
    if to.gateway is not None:
        return _CASE.format(option=f"--interface {to.device}", gateways=f"--gateway {to.gateway}")
    return ""
