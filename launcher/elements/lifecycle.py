"""<on_reboot>: what a guest's own reboot does."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain

_ON_REBOOT = {"Reboot": "restart", "Terminate": "destroy"}


def lifecycle(domain: Domain) -> list[Element]:
    """Nothing where the manifest says nothing: libvirt's default is to restart the guest, and KubeVirt's too."""
    return [E.on_reboot(_ON_REBOOT[domain.rebootPolicy])] if domain.rebootPolicy is not None else []
