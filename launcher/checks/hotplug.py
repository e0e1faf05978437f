"""What the manifest has for a hotplug, which there is none of."""

from collections.abc import Iterator

from launcher.checks.finding import warning
from launcher.manifest.objects import placed
from launcher.manifest.volumes import Volume
from program.finding import Finding


def from_the_start(volumes: tuple[Volume, ...]) -> Iterator[Finding]:
    """Yield a warning for each volume that KubeVirt would plug into the running guest."""
    for path, volume in placed("spec.volumes", volumes):
        for kind, claim in (("persistentVolumeClaim", volume.persistentVolumeClaim), ("dataVolume", volume.dataVolume)):
            if claim is not None and claim.hotpluggable:
                yield warning(
                    f"{path}.{kind}.hotpluggable",
                    f"the guest has the volume {volume.name!r} from its start to its end: there is no hotplug",
                    "leave it out, and to take the volume away stop the VM and change its manifest",
                )
