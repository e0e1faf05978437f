"""Istio's proxy in the VM's pod, a container that Istio's webhook adds: it takes the pod's connections and passes them
on, so that some TCP ports are its own.

The annotation is KubeVirt's, and both are Istio's (istio.io/latest/docs/reference/config/labels).
"""

from launcher.manifest.annotations import is_true
from launcher.manifest.spec import Metadata

INJECT = "sidecar.istio.io/inject"
#: From the first port to the last, as KubeVirt leaves them out of passt's (its pkg/network/istio, ReservedPorts);
#: istio.io/latest/docs/ops/deployment/application-requirements says what each is for.
PORTS = ((15000, 15001), (15004, 15004), (15006, 15006), (15008, 15009), (15020, 15021), (15053, 15053), (15090, 15090))


def is_injected(metadata: Metadata) -> bool:
    """Return whether the VM's pod is to have the proxy, by the annotation, or without one by the label."""
    return is_true(metadata.annotations.given.get(INJECT) or metadata.labels.get(INJECT))
