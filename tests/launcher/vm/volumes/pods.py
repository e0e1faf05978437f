"""A directory that stands for a pod's root: what the kubelet mounts there, and what is found there."""

import io
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pycdlib

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.files import needs_of
from launcher.vm.paths import below
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.files import shares_of
from launcher.vm.volumes.media import Need
from tests.launcher.vms import read_manifest, vmi_text

#: 16 MiB of nothing, in both formats.
SIZE = 16 << 20


def vmi_with(
    tmp_path: Path, *volumes: str, spec: str = "", domain: str = "", devices: str = "", name: str = "vm"
) -> VirtualMachineInstance:
    """A VM with these volumes, each YAML on one line, and further lines below spec, its domain, and their devices."""
    listed = "".join(f"  - {volume}\n" for volume in volumes)
    manifest = tmp_path / f"{name}.yaml"
    manifest.write_text(
        vmi_text(domain=devices + domain, name=name) + spec + (f"  volumes:\n{listed}" if volumes else "")
    )
    return read_manifest(manifest)


def needed(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> tuple[Need, ...]:
    """What is made; the first Refusal where a volume cannot be had."""
    needs, refusals = needs_of(vmi, facts, root)
    for refusal in refusals:
        raise refusal
    return needs


def put(root: Path, place: str, content: bytes = b"") -> Path:
    file = below(root, place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def blank(root: Path, place: str) -> Path:
    """A raw disk of SIZE with nothing on it."""
    file = put(root, place)
    os.truncate(file, SIZE)
    return file


def mount(root: Path, place: str, files: Mapping[str, bytes]) -> Path:
    """A directory as the kubelet makes it of a config map: links through `..data` to the files of one version."""
    directory = below(root, place)
    for name, content in files.items():
        put(directory, f"..2026_11_21_19_26_59.1/{name}", content)
    (directory / "..2026_11_21_19_26_59.1").mkdir(parents=True, exist_ok=True)
    (directory / "..data").symlink_to("..2026_11_21_19_26_59.1")
    for first in {name.partition("/")[0] for name in files}:
        (directory / first).symlink_to(f"..data/{first}")
    return directory


def qcow2(path: Path, size: int = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    qemu_img("create", "-q", "-f", "qcow2", path, str(size))
    return path


def qemu_img(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("qemu-img", *arguments), check=True, capture_output=True, text=True)


def qemu_io(image: Path, command: str) -> str:
    done = subprocess.run(("qemu-io", "-f", "qcow2", "-c", command, image), check=True, capture_output=True, text=True)
    return done.stdout


def described(image: Path) -> dict[str, Any]:
    """What qemu-img says of an image, which it has found whole."""
    qemu_img("check", "-q", image)
    said: dict[str, Any] = json.loads(qemu_img("info", "--output=json", image).stdout)
    return said


def provide(root: Path, vmi: VirtualMachineInstance, facts: Facts) -> None:
    """All that the kubelet would mount for the VM's volumes and credentials."""
    for secret in {credential.secret for credential in vmi.spec.accessCredentials}:
        mount(root, paths.credentials(secret), {"key": b"ssh-ed25519 AAAA\n"})
    for share in shares_of(vmi, root):
        share.directory.mkdir(parents=True, exist_ok=True)
    for volume in vmi.spec.volumes:
        name = volume.name
        if name in vmi.spec.shared:
            continue
        match volume.kind:
            case "persistentVolumeClaim" | "dataVolume" | "ephemeral":
                blank(root, paths.block_device(name) if name in facts.block else paths.disk_image(name))
            case "hostDisk":
                assert volume.hostDisk is not None
                blank(root, paths.disk_image(name, Path(volume.hostDisk.path).name))
            case "containerDisk":
                assert volume.containerDisk is not None
                place = paths.image_volume(name) + (volume.containerDisk.path or "/disk/disk.img")
                if name in facts.raw_images:
                    blank(root, place)
                else:
                    qcow2(below(root, place))
            case "cloudInitNoCloud" | "cloudInitConfigDrive":
                mount(root, paths.mounted("secret", name), {"userdata": b"u", "networkdata": b"n"})
            case "configMap":
                mount(root, paths.mounted("config-map", name), {"key": b"value", "tu106.rom": b"ROM"})
            case "secret":
                mount(root, paths.mounted("secret", name), {"slic.bin": b"", "msdm.bin": b""})
            case "downwardAPI":
                mount(root, paths.mounted("downwardapi", name), {"labels": b""})
            case "sysprep":
                mount(root, paths.mounted("sysprep", name), {"autounattend.xml": b"<unattend/>"})
            case "serviceAccount":
                mount(root, paths.SERVICE_ACCOUNT, {"token": b"t", "ca.crt": b"c", "namespace": b"n"})
            case "emptyDisk" | "containerPath":
                pass


def tree(root: Path) -> dict[str, bytes | str | None]:
    """All that is below: a file's content, a link's target, None for a directory."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def read_iso(path: Path) -> tuple[str, dict[str, bytes]]:
    """Label and files of an image, as Unix reads it (Rock Ridge); those that Windows reads (Joliet) are the same."""
    assert path.stat().st_size % 4096 == 0, "QEMU takes it on no disk with blocks of 4096 bytes"
    image = pycdlib.PyCdlib()
    image.open(str(path))
    try:
        unix = _files(image, "rr_path")
        assert sorted(_files(image, "joliet_path").values()) == sorted(unix.values())
        label = image.pvd.volume_identifier.decode("ascii").rstrip()
        assert image.joliet_vd is not None
        assert image.joliet_vd.volume_identifier.decode("utf-16-be").rstrip() == label[:16].rstrip()
        return label, unix
    finally:
        image.close()


def _files(image: Any, path: str) -> dict[str, bytes]:
    found = {}
    for directory, _, files in image.walk(**{path: "/"}):
        for file in files:
            content = io.BytesIO()
            name = f"{directory.rstrip('/')}/{file}"
            image.get_file_from_iso_fp(content, **{path: name})
            found[name.lstrip("/")] = content.getvalue()
    return found
