"""<clock> and its timers."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def clock(domain: Domain) -> list[Element]:
    return []
