"""<iothreads>, and which disk is served by which."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def iothreads(domain: Domain) -> list[Element]:
    return []
