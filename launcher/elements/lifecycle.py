"""<on_reboot>: what a guest's own reboot does."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def lifecycle(domain: Domain) -> list[Element]:
    return []
