"""Whoever fills a volume may put anything where a file is expected: nothing there leads out of the volume."""

import json
import os
import stat
import struct
from pathlib import Path

import pytest

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.files import needs_of
from launcher.vm.paths import below
from launcher.vm.volumes.checks import volumes
from launcher.vm.volumes.images import OtherFiles, other_files
from launcher.vm.volumes.media import making_media, refuse_links
from program.errors import Refusal
from tests.launcher.vm.volumes.pods import SIZE, needed, put, qcow2, qemu_img, vmi_with

_KERNELS = "firmware: {kernelBoot: {container: {image: x, kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}}}"

#: By volume and firmware: the manifest's volume, lines below its domain, and the file that a link may stand for.
FILES = {
    "a claim": ("{name: v, persistentVolumeClaim: {claimName: c}}", "", paths.disk_image("v")),
    "a DataVolume": ("{name: v, dataVolume: {name: c}}", "", paths.disk_image("v")),
    "an ephemeral claim": ("{name: v, ephemeral: {persistentVolumeClaim: {claimName: c}}}", "", paths.disk_image("v")),
    "a host disk": ("{name: v, hostDisk: {path: /data/a.img, type: Disk}}", "", paths.disk_image("v", "a.img")),
    "a host disk to be made": (
        "{name: v, hostDisk: {path: /data/a.img, type: DiskOrCreate, capacity: 1Mi}}",
        "",
        paths.disk_image("v", "a.img"),
    ),
    "an image": ("{name: v, containerDisk: {image: x}}", "", f"{paths.image_volume('v')}/disk/disk.img"),
    "an image's path": ("{name: v, containerDisk: {image: x, path: /a}}", "", f"{paths.image_volume('v')}/a"),
    "a config map": ("{name: v, configMap: {name: c}}", "", f"{paths.mounted('config-map', 'v')}/key"),
    "a secret": ("{name: v, secret: {secretName: c}}", "", f"{paths.mounted('secret', 'v')}/key"),
    "the downward API": ("{name: v, downwardAPI: {}}", "", f"{paths.mounted('downwardapi', 'v')}/key"),
    "an answer file": (
        "{name: v, sysprep: {secret: {name: c}}}",
        "",
        f"{paths.mounted('sysprep', 'v')}/autounattend.xml",
    ),
    "a service account": ("{name: v, serviceAccount: {serviceAccountName: c}}", "", f"{paths.SERVICE_ACCOUNT}/token"),
    "cloud-init's secret": (
        "{name: v, cloudInitNoCloud: {secretRef: {name: c}}}",
        "",
        f"{paths.mounted('secret', 'v')}/userdata",
    ),
    "a kernel": ("{name: v, emptyDisk: {capacity: 1Mi}}", _KERNELS, f"{paths.KERNEL_IMAGE}/boot/vmlinuz"),
    "an initrd": ("{name: v, emptyDisk: {capacity: 1Mi}}", _KERNELS, f"{paths.KERNEL_IMAGE}/boot/initrd"),
    "an ACPI table": (
        "{name: v, secret: {secretName: c}}",
        "firmware: {acpi: {slicNameRef: v}}",
        f"{paths.mounted('secret', 'v')}/slic.bin",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "outside/qemu.conf", bytes(SIZE))
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


def said(root: Path, tmp_path: Path, name: str) -> list[str]:
    """What is said of it before the start."""
    volume, domain, _ = FILES[name]
    vmi = vmi_with(tmp_path, volume, domain=f"    {domain}\n" if domain else "")
    needs, refusals = needs_of(vmi, Facts(), root)
    return [*map(str, refusals), *map(str, volumes(vmi.spec, Facts(), root, needs))]


@pytest.mark.parametrize("name", FILES)
def test_no_link_leads_out_of_a_volume(root: Path, tmp_path: Path, name: str) -> None:
    file = put(root, FILES[name][2])
    file.unlink()
    file.symlink_to(os.path.relpath(tmp_path / "outside" / "qemu.conf", file.parent))
    assert file.stat().st_size == SIZE
    lines = said(root, tmp_path, name)
    words = (f"leads out of its volume, to {tmp_path}/outside/qemu.conf", "has no disk in", "has no file /a")
    assert [line for line in lines if any(each in line for each in words)], lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize("name", ["a claim", "an ephemeral claim", "a host disk", "a host disk to be made", "a kernel"])
@pytest.mark.parametrize(
    ("what", "mode"),
    [
        ("a pipe", stat.S_IFIFO),
        ("a socket", stat.S_IFSOCK),
        ("a device", stat.S_IFCHR),
        ("a device", stat.S_IFBLK),
        ("a directory", stat.S_IFDIR),
    ],
)
def test_what_is_no_regular_file_is_not_opened(root: Path, tmp_path: Path, name: str, what: str, mode: int) -> None:
    """A pipe's opening would wait for somebody, and a device's may do something to it."""
    file = put(root, FILES[name][2])
    file.unlink()
    if mode == stat.S_IFDIR:
        file.mkdir()
    else:
        os.mknod(file, 0o600 | mode, os.makedev(1, 3))
    lines = said(root, tmp_path, name)
    assert [line for line in lines if f"{file} is {what}; expected" in line], lines


def test_a_link_within_a_volume_is_its_own_affair(root: Path, tmp_path: Path) -> None:
    """Debian's images have /vmlinuz, a link to a file in boot."""
    put(root, f"{paths.KERNEL_IMAGE}/boot/vmlinuz-6.1")
    put(root, f"{paths.KERNEL_IMAGE}/boot/initrd")
    below(root, f"{paths.KERNEL_IMAGE}/boot/vmlinuz").symlink_to("vmlinuz-6.1")
    put(root, f"{paths.image_volume('v')}/images/one.qcow2")
    qcow2(below(root, f"{paths.image_volume('v')}/images/one.qcow2"))
    (below(root, paths.image_volume("v")) / "a").symlink_to("images/one.qcow2")
    vmi = vmi_with(tmp_path, FILES["an image's path"][0], domain=f"    {_KERNELS}\n")
    with making_media(needed(vmi, Facts(), root)):
        assert below(root, paths.container_disk(0)).resolve().name == "one.qcow2"
    assert list(volumes(vmi.spec, Facts(), root, needs_of(vmi, Facts(), root).needs)) == []


def test_what_has_become_a_link_since_the_vm_was_planned_is_refused_then(root: Path, tmp_path: Path) -> None:
    disk = put(root, paths.disk_image("v"), bytes(SIZE))
    needs = needed(vmi_with(tmp_path, FILES["a claim"][0]), Facts(), root)
    with making_media(needs):
        refuse_links(needs)
        disk.unlink()
        disk.symlink_to(tmp_path / "outside" / "qemu.conf")
        with pytest.raises(Refusal, match=r"the volume 'v': .*/disk\.img leads out of its volume, to "):
            refuse_links(needs)
    with pytest.raises(Refusal, match="leads out of its volume"), making_media(needs):
        pass


def test_a_link_that_leads_nowhere_or_to_itself_is_one_line(root: Path, tmp_path: Path) -> None:
    disk = put(root, paths.disk_image("v"))
    vmi = vmi_with(tmp_path, FILES["a claim"][0])
    for target, reason in (("nowhere", "No such file or directory"), ("disk.img", "Too many levels of symbolic links")):
        disk.unlink()
        disk.symlink_to(target)
        (refusal,) = needs_of(vmi, Facts(), root).refusals
        assert f"{disk} cannot be found: {reason}; expected a regular file in {disk.parent}" in str(refusal)


_STATE = "      tpm: {persistent: true}\n    firmware: {bootloader: {efi: {persistent: true, secureBoot: false}}}\n"


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a socket", "a link to a directory"])
@pytest.mark.parametrize(
    ("place", "whose"),
    [
        (f"{paths.NVRAM}/vm_VARS.fd", "EFI's variables"),
        (f"{paths.TPM_STATE}/5f0c1a52/tpm2/tpm2-00.permall", "the TPM's state"),
        (f"{paths.SWTPM_CA}/signkey.pem", "the TPM's state"),
    ],
)
def test_in_what_outlives_a_pod_of_firmware_and_tpm_are_regular_files_alone(
    root: Path, tmp_path: Path, place: str, whose: str, kind: str
) -> None:
    """QEMU opened a link's target for writing, and waited for a pipe's writer."""
    file = put(root, place, b"state")
    for directory in (paths.NVRAM, paths.TPM_STATE, paths.SWTPM_CA):
        below(root, directory).mkdir(parents=True, exist_ok=True)
    vmi = vmi_with(tmp_path, devices=_STATE)
    needs = needed(vmi, Facts(), root)
    refuse_links(needs)
    file.unlink()
    match kind:
        case "a link":
            file.symlink_to(tmp_path / "outside" / "qemu.conf")
        case "a link to a directory":
            file.symlink_to(tmp_path)
        case _:
            os.mknod(file, 0o600 | (stat.S_IFIFO if kind == "a pipe" else stat.S_IFSOCK))
    said = f"{whose}: {file} is {kind.removesuffix(' to a directory')}; expected regular files alone, take it away"
    assert [str(refusal) for refusal in needs_of(vmi, Facts(), root).refusals] == [said]
    with pytest.raises(Refusal) as refused:
        refuse_links(needs)
    assert str(refused.value) == said


def test_a_claim_with_too_many_files_for_firmware_is_not_read_to_its_end(root: Path, tmp_path: Path) -> None:
    for number in range(1001):
        put(root, f"{paths.NVRAM}/{number}")
    (refusal,) = needs_of(vmi_with(tmp_path, devices=_STATE), Facts(), root).refusals
    assert str(refusal).endswith(f"{paths.NVRAM} has more than 1000 files; take away what is no VM's")


_DISKS = ("{name: scratch, emptyDisk: {capacity: 16Mi}}", "{name: system, containerDisk: {image: x}}")
_SCRATCH, _SYSTEM, _IMAGE = paths.empty_disk("scratch"), paths.overlay("system"), paths.container_disk(1)


@pytest.mark.parametrize(
    ("place", "other", "said"),
    [
        (_SCRATCH, ("-b", "{outside}", "-F", "raw"), "the backing file '{outside}', as 'raw'"),
        (_SYSTEM, ("-b", "{outside}", "-F", "qcow2"), "the backing file '{outside}', as 'qcow2'"),
        (_SYSTEM, ("-b", "{image}", "-F", "raw"), "the backing file '{image}', as 'raw'"),
        (_SYSTEM, (), "no backing file"),
        (_SCRATCH, ("-o", "data_file={outside}"), "a data file"),
    ],
)
def test_a_disk_that_was_changed_to_read_another_file_is_not_the_guests(
    root: Path, tmp_path: Path, place: str, other: tuple[str, ...], said: str
) -> None:
    """By a QEMU that the guest had taken over, before the container's restart."""
    qcow2(below(root, paths.image_volume("system")) / "disk" / "disk.qcow2")
    needs = needed(vmi_with(tmp_path, *_DISKS), Facts(), root)
    with making_media(needs):
        pass
    file = below(root, place)
    file.parent.mkdir(parents=True)
    names = {"outside": str(tmp_path / "outside" / "qemu.conf"), "image": str(below(root, _IMAGE))}
    arguments = [argument.format(**names) for argument in other]
    qemu_img("create", "-q", "-u", "-f", "qcow2", *arguments, file, str(SIZE))
    with pytest.raises(Refusal) as refused, making_media(needs):
        pass
    fix = "take it away, the guest's disk is made there"
    assert str(refused.value) == f"{file}: is not what was made here: it has {said.format(**names)}; {fix}"


def test_what_qemu_does_not_read_of_an_image_is_not_read_here(root: Path) -> None:
    """It takes no extension behind the backing file's name, and the last one before it."""
    image = root / "image.qcow2"
    qemu_img("create", "-q", "-u", "-f", "qcow2", "-b", "/below", "-F", "qcow2", image, str(SIZE))
    header = bytearray(image.read_bytes()[: 64 << 10])
    place, end = int.from_bytes(header[8:16]), header.index(b"\xe2\x79\x2a\xca")
    another = struct.pack(">II8s", 0xE2792ACA, 3, b"raw")
    assert other_files(bytes(header)) == OtherFiles("/below", "qcow2")
    header[place + 8 : place + 24] = another
    assert other_files(bytes(header)) == OtherFiles("/below", "qcow2")
    header[end + 16 : end + 32] = another  # over the table of the features' names
    header[end + 32 : end + 40] = bytes(8)
    image.write_bytes(header + image.read_bytes()[64 << 10 :])
    assert other_files(bytes(header)) == OtherFiles("/below", "raw")
    info = json.loads(qemu_img("info", "-U", "--output=json", image).stdout)
    assert (info["full-backing-filename"], info["backing-filename-format"]) == ("/below", "raw")
    header[8:16] = (1 << 62).to_bytes(8)
    header[end : end + 8] = struct.pack(">II", 1, len(header) - end - 8)  # to the last byte of what is read
    assert other_files(bytes(header)) == OtherFiles("?")
