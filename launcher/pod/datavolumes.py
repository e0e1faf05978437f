"""The DataVolumes of a VM's templates: CDI makes their claims, which the pod mounts, and fills them."""

from launcher.manifest.parser import Given
from launcher.manifest.spec import VirtualMachine
from launcher.pod.plain import PodObject, plain

#: CDI takes over a claim of this name that is there already, as for KubeVirt's (pkg/storage/types, dv.go).
_ADOPTS = "cdi.kubevirt.io/allowClaimAdoption"


def data_volumes(given: Given) -> tuple[PodObject, ...]:
    """Return them as the API takes them, in the VM's namespace whatever the template says, as KubeVirt's are."""
    if not isinstance(given.manifest, VirtualMachine):
        return ()
    return tuple(
        {
            "apiVersion": "cdi.kubevirt.io/v1beta1",
            "kind": "DataVolume",
            "metadata": {
                "name": template.metadata.name,
                **({"namespace": given.namespace} if given.namespace is not None else {}),
                **({"labels": dict(template.metadata.labels)} if template.metadata.labels else {}),
                "annotations": {_ADOPTS: "true", **template.metadata.annotations},
            },
            "spec": plain(template.spec, f"spec.dataVolumeTemplates[{index}].spec"),
        }
        for index, template in enumerate(given.manifest.spec.dataVolumeTemplates)
    )
