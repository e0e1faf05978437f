"""<metadata>: who the VM is to Kubernetes."""

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Metadata

_NAMESPACE = "http://kubevirt.io"


def metadata(metadata: Metadata) -> list[Element]:
    """The instance's uid, where it has one: a manifest that no API server has seen has none."""
    if metadata.uid is None:
        return []
    kubevirt = etree.Element(f"{{{_NAMESPACE}}}kubevirt", nsmap={None: _NAMESPACE})
    etree.SubElement(kubevirt, f"{{{_NAMESPACE}}}uid").text = str(metadata.uid)
    return [E.metadata(kubevirt)]
