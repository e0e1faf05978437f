"""Objects of manifests, for tests: as YAML says them, read back."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from launcher.manifest.parser import read_vm
from launcher.pod.documents import documents
from launcher.pod.objects import objects
from launcher.pod.security import Confinement
from tests.launcher.vms import vmi_text

#: Fixed, so that a new version leaves the golden files alone.
IMAGE = "gpu-launcher:golden"
NODE_DEVICES = "devices.gpu-launcher.dev"
PRIVILEGED = Confinement()


def text_of(
    vm: Path,
    block: frozenset[str] = frozenset(),
    confinement: Confinement = PRIVILEGED,
    words: Sequence[str] = (),
) -> str:
    """What `gpu-launcher pod` prints; `words` are the flags that it was given."""
    given = read_vm(vm)
    return documents(
        objects(given, image=IMAGE, block=block, node_devices=NODE_DEVICES, confinement=confinement, words=words)
    )


def objects_of(vm: Path, block: frozenset[str] = frozenset(), confinement: Confinement = PRIVILEGED) -> dict[str, Any]:
    """By kind."""
    return {found["kind"]: found for found in yaml.load_all(text_of(vm, block, confinement), yaml.CSafeLoader)}


def pod_of(vm: Path, block: frozenset[str] = frozenset(), confinement: Confinement = PRIVILEGED) -> Any:
    return objects_of(vm, block, confinement)["Pod"]


def container_of(vm: Path, block: frozenset[str] = frozenset(), confinement: Confinement = PRIVILEGED) -> Any:
    (container,) = pod_of(vm, block, confinement)["spec"]["containers"]
    return container


def metered_pod(vm: Path, metrics: int) -> Any:
    """The pod that serves metrics on this port."""
    *_, pod = objects(read_vm(vm), image=IMAGE, block=frozenset(), node_devices=NODE_DEVICES, metrics=metrics)
    return pod


def more_than_allowed(pod: Any) -> list[str]:
    """What no pod may have: a mount below another one that can be written to, and a capability that docs/pod.md does
    not name. /var/run is /run in the image."""
    (container,) = pod["spec"]["containers"]
    mounts = [
        (PurePosixPath(mount["mountPath"].replace("/var/run/", "/run/", 1)), "readOnly" in mount)
        for mount in container["volumeMounts"]
    ]
    below = [
        f"{place} is below {above}"
        for place, _ in mounts
        for above, read_only in mounts
        if above in place.parents and not read_only
    ]
    capabilities = container["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    return [*below, *sorted({*capabilities.get("add", ())} - {"CHOWN", "SETGID", "SETUID", "SYS_RESOURCE"})]


def written_vm(path: Path, *, domain: str = "", spec: str = "", **parts: Any) -> Path:
    """A small VM: further lines below spec.domain, and below spec. It has no network."""
    path.write_text(vmi_text(domain=domain, **parts) + spec)
    return path
