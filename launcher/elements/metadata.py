"""<metadata>: the VM's identity in Kubernetes."""

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Metadata

_NAMESPACE = "http://kubevirt.io"


def metadata(metadata: Metadata) -> list[Element]:
    """Return <metadata> with the instance's uid; none if it has none, as a manifest that no API server has seen."""
    if metadata.uid is None:
        return []
    kubevirt = etree.Element(f"{{{_NAMESPACE}}}kubevirt", nsmap={None: _NAMESPACE})
    etree.SubElement(kubevirt, f"{{{_NAMESPACE}}}uid").text = str(metadata.uid)
    return [E.metadata(kubevirt)]
