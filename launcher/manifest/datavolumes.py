"""spec.dataVolumeTemplates of a VirtualMachine: claims that CDI, the Containerized Data Importer, makes and fills."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from launcher.manifest.objects import Below, OpenObject, PassedOn
from launcher.manifest.scalars import DNSName, Text, first_twice
from launcher.manifest.volumes import Volume
from program.errors import Nonsense

_FOR_IT = PassedOn("they are for the DataVolume")


class DataVolumeMetadata(OpenObject):
    name: DNSName
    labels: Annotated[Mapping[Text, Text], _FOR_IT] = {}
    annotations: Annotated[Mapping[Text, Text], _FOR_IT] = {}


class DataVolumeTemplate(OpenObject):
    """A DataVolume that `gpu-launcher pod` prints. Its spec is CDI's, which checks it."""

    metadata: DataVolumeMetadata
    spec: Annotated[Mapping[Text, Any], PassedOn("it is for CDI")]


def check_templates(templates: tuple[DataVolumeTemplate, ...], volumes: Iterable[Volume]) -> None:
    """Raise Nonsense for two of one name, and for one that no volume names (KubeVirt's webhook refuses both)."""
    if name := first_twice(template.metadata.name for template in templates):
        raise Nonsense(f"two dataVolumeTemplates are called {name!r}", "rename one of them")
    named = {volume.claim for volume in volumes}
    for index, template in enumerate(templates):
        if (name := template.metadata.name) not in named:
            path = f"dataVolumeTemplates[{index}].metadata.name"
            fix = f"add a volume with dataVolume: {{name: {name}}}, or leave the template out"
            raise Below(path, f"no volume names {name!r}", fix)
