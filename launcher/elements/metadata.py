"""<metadata>: who the VM is to Kubernetes."""

from lxml.builder import E, ElementMaker
from lxml.etree import _Element as Element

from launcher.manifest.spec import Metadata

_NAMESPACE = "http://kubevirt.io"
_KUBEVIRT = ElementMaker(namespace=_NAMESPACE, nsmap={None: _NAMESPACE})


def metadata(metadata: Metadata) -> list[Element]:
    """The instance's uid, where it has one: a manifest that no API server has seen has none."""
    return [] if metadata.uid is None else [E.metadata(_KUBEVIRT.kubevirt(_KUBEVIRT.uid(str(metadata.uid))))]
