"""<metadata>: who the VM is to Kubernetes."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import Metadata


def metadata(metadata: Metadata) -> list[Element]:
    return []
