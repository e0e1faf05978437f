"""All that a domain names on disk and nobody else makes: made before it is defined, and taken away after its end.

libvirt itself copies EFI's variables from their template and makes the TPM's state; the pod mounts everything else.
Why it is done as it is: docs/decisions/0024.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

from launcher import paths
from launcher.errors import Refusal
from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance
from launcher.manifest.volumes import Volume
from launcher.storage.cloud_init import config_drive, no_cloud
from launcher.storage.container_disks import only_disk
from launcher.storage.iso import ISO, write_iso
from launcher.storage.mounted import mounted_files
from launcher.storage.persistent import claimed_disk, make_host_disk
from launcher.storage.places import directory, kept, link, renewed
from launcher.storage.qcow2 import is_qcow2, make_empty, make_overlay, refuse_dependent

_MEBIBYTE = 1 << 20
#: KubeVirt's, pkg/config: of what the manifest gives no label, and of sysprep.
_LABEL, _SYSPREP_LABEL = "cfgdata", "unattendCD"
#: One of which Windows' setup looks for (KubeVirt's pkg/config/sysprep.go), in any case.
_ANSWER_FILES = {"autounattend.xml", "unattend.xml"}


Mounted = Literal["config-map", "secret", "downwardapi", "sysprep"]


@contextmanager
def prepared(vmi: VirtualMachineInstance, facts: Facts, root: Path = Path("/")) -> Iterator[None]:
    """Everything is there within, below `root`, which stands for the pod's; files are readable for their owner alone.

    Afterwards: images of cloud-init, config maps and the like are gone. Empty disks and overlays stay, for the next
    start in the same pod, where the guest has written to them. What was asked for on a volume stays in any case.
    Refusal, with nothing left of what was made, where something is missing or cannot be made.
    """
    with ExitStack() as made:
        for index, volume in enumerate(vmi.spec.volumes):
            made.enter_context(_volume(vmi, volume, index, facts, root))
        if vmi.spec.efi is not None and vmi.spec.efi.persistent:
            made.enter_context(directory(_below(root, paths.NVRAM)))
        yield


def _volume(
    vmi: VirtualMachineInstance, volume: Volume, index: int, facts: Facts, root: Path
) -> AbstractContextManager[None]:
    name = volume.name
    place = partial(_below, root)
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume":
            claimed_disk(name, facts, root)
            return nullcontext()
        case "ephemeral":
            return _overlay(name, claimed_disk(name, facts, root), "raw", root)
        case "containerDisk":
            return _container_disk(volume, index, facts, root)
        case "emptyDisk":
            assert volume.emptyDisk is not None, "it is the volume's kind"
            # In whole MiB, as KubeVirt's pkg/emptydisk.
            size = volume.emptyDisk.capacity // _MEBIBYTE * _MEBIBYTE
            return _image(name, place(paths.empty_disk(name)), partial(make_empty, size=size))
        case "hostDisk":
            make_host_disk(volume, root)
            return nullcontext()
        case "cloudInitNoCloud":
            seed = no_cloud(vmi, volume, partial(_mounted, "secret", name, root))
            return _iso(seed, place(paths.cloud_init_iso("noCloud", vmi.metadata.namespace, vmi.metadata.name)))
        case "cloudInitConfigDrive":
            drive = config_drive(vmi, volume, partial(_mounted, "secret", name, root))
            return _iso(drive, place(paths.cloud_init_iso("configdrive", vmi.metadata.namespace, vmi.metadata.name)))
        case "serviceAccount":
            token = mounted_files(name, place(paths.SERVICE_ACCOUNT))
            return _iso(ISO(_LABEL, token), place(paths.SERVICE_ACCOUNT_ISO))
        case "sysprep":
            answers = _mounted("sysprep", name, root)
            _refuse_without_answers(name, answers)
            return _iso(ISO(_SYSPREP_LABEL, answers), place(paths.iso("sysprep", name)))
        case "configMap":
            assert volume.configMap is not None, "it is the volume's kind"
            return _labelled("config-map", name, volume.configMap.volumeLabel, root)
        case "secret":
            assert volume.secret is not None, "it is the volume's kind"
            return _labelled("secret", name, volume.secret.volumeLabel, root)
        case "downwardAPI":
            assert volume.downwardAPI is not None, "it is the volume's kind"
            return _labelled("downwardapi", name, volume.downwardAPI.volumeLabel, root)


def _below(root: Path, place: str) -> Path:
    return root / place.lstrip("/")


def _mounted(kind: Mounted, name: str, root: Path) -> Mapping[str, bytes]:
    return mounted_files(name, _below(root, paths.mounted(kind, name)))


def _labelled(kind: Mounted, name: str, label: str, root: Path) -> AbstractContextManager[None]:
    return _iso(ISO(label or _LABEL, _mounted(kind, name, root)), _below(root, paths.iso(kind, name)))


def _iso(iso: ISO, place: Path) -> AbstractContextManager[None]:
    return renewed(place, partial(write_iso, iso))


def _refuse_without_answers(name: str, files: Mapping[str, bytes]) -> None:
    if not _ANSWER_FILES & {file.lower() for file in files}:
        there = ", ".join(map(repr, files)) or "nothing"
        raise Refusal(
            f"the volume {name!r}: expected an answer file for Windows, autounattend.xml or unattend.xml; "
            f"mounted is {there}"
        )


@contextmanager
def _container_disk(volume: Volume, index: int, facts: Facts, root: Path) -> Iterator[None]:
    name, image = volume.name, only_disk(volume, root)
    refuse_dependent(f"the volume {name!r}", image)
    place = _below(root, paths.container_disk(index))
    with link(place, image), _overlay(name, place, "raw" if name in facts.raw_images else "qcow2", root):
        yield


def _overlay(name: str, below: Path, kind: Literal["raw", "qcow2"], root: Path) -> AbstractContextManager[None]:
    return _image(name, _below(root, paths.overlay(name)), partial(make_overlay, below=below, kind=kind))


def _image(name: str, place: Path, fill: Callable[[Path], None]) -> AbstractContextManager[None]:
    """One that an earlier start in this pod has left is the guest's disk."""
    if os.path.lexists(place) and not _is_image(place):
        raise Refusal(
            f"the volume {name!r}: {place} is there and is no qcow2 image; take it away, the guest's disk is made there"
        )
    return kept(place, fill)


def _is_image(place: Path) -> bool:
    try:
        return is_qcow2(place)
    except OSError:
        return False
