"""<launchSecurity>: memory that the host cannot read."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def launch_security(domain: Domain) -> list[Element]:
    return []
