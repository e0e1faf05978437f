"""Manifests and trees of files for the checks: small, and written where they are used."""

from collections.abc import Iterable
from pathlib import Path

from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vms import read_manifest, vmi_text

GIB, MIB = 1 << 30, 1 << 20


def vmi(
    directory: Path,
    *,
    gpus: Iterable[tuple[str, str]] = (),
    domain: str = "",
    devices: str = "",
    below: str = "",
    hugepages: str = "",
    annotations: str = "",
) -> VirtualMachineInstance:
    """A VM of 1 GiB without a network, or with that of `devices`, lines below spec.domain.devices; `domain` are lines
    below spec.domain, `below` below spec; `hugepages` is their size, `annotations` a mapping in one line. It is vm.yaml
    in the directory."""
    text = vmi_text(domain=domain, gpus=gpus) + below
    if devices:
        text = text.replace("      autoattachPodInterface: false\n", devices)
    if hugepages:
        text = text.replace("{guest: 1Gi}", f"{{guest: 1Gi, hugepages: {{pageSize: {hugepages}}}}}")
    if annotations:
        text = text.replace("{name: vm}", f"{{name: vm, annotations: {annotations}}}")
    path = directory / "vm.yaml"
    path.write_text(text)
    return read_manifest(path)


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """These files, by their paths below `root`, which is returned."""
    for path, content in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root
