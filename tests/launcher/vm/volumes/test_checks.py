import errno
import os
import shutil
import subprocess
from pathlib import Path

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.files import needs_of
from launcher.vm.volumes.checks import volumes
from tests.launcher.vm.trees import vmi, write

DATA = "  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n"
BOOT = "    firmware: {kernelBoot: {container: {image: kernels, kernelPath: /vmlinuz, initrdPath: /initrd}}}\n"
TABLES = "    firmware: {acpi: {slicNameRef: tables}}\n"
SECRET = "  volumes: [{name: tables, secret: {secretName: tables}}]\n"


def said(tmp_path: Path, *, domain: str = "", below: str = "") -> list[str]:
    vm = vmi(tmp_path, domain=domain, below=below)
    return list(map(str, volumes(vm.spec, Facts(), tmp_path, needs_of(vm, Facts(), tmp_path).needs)))


def test_a_disk_that_is_there_has_to_open_as_the_guest_opens_it(tmp_path: Path) -> None:
    """As whoever may not. What is not there, and what is no file, is said where it is needed."""
    assert said(tmp_path, below=DATA) == []
    write(tmp_path, {paths.disk_image("data"): ""})
    assert said(tmp_path, below=DATA) == []
    disk = tmp_path / paths.disk_image("data").lstrip("/")
    host_disk = "  volumes: [{name: data, hostDisk: {path: /srv/a b/disk.img, type: Disk}}]\n"
    shutil.copy("/bin/sleep", disk)
    with subprocess.Popen([disk, "60"]) as running:
        (found,) = said(tmp_path, below=DATA)
        (of_node,) = said(tmp_path, below=host_disk)
        running.kill()
    assert of_node.endswith("; give it to the pod's user on the node: chown 107:107 '/srv/a b/disk.img'")
    assert found.startswith(
        f"the volume 'data': {paths.disk_image('data')} cannot be written: {os.strerror(errno.ETXTBSY)}; let its owner"
    )


def test_a_kernel_has_to_be_in_the_image_that_is_mounted(tmp_path: Path) -> None:
    write(tmp_path, {f"{paths.KERNEL_IMAGE}/vmlinuz": ""})
    (found,) = said(tmp_path, domain=BOOT)
    assert found == (
        f"firmware.kernelBoot: {tmp_path}{paths.KERNEL_IMAGE}/initrd cannot be found: No such file or directory; "
        f"expected a path of kernels, which the pod mounts whole at {paths.KERNEL_IMAGE}"
    )
    write(tmp_path, {f"{paths.KERNEL_IMAGE}/initrd": ""})
    assert said(tmp_path, domain=BOOT) == []


def test_a_table_has_to_be_a_key_of_its_secret(tmp_path: Path) -> None:
    (found,) = said(tmp_path, domain=TABLES, below=SECRET)
    assert found.startswith("firmware.acpi: ")
    assert found.endswith("expected the key slic.bin in that secret")
    write(tmp_path, {f"{paths.mounted('secret', 'tables')}/slic.bin": ""})
    assert said(tmp_path, domain=TABLES, below=SECRET) == []


def test_a_disk_that_the_node_has_to_cache_is_a_warning(tmp_path: Path) -> None:
    """Of what the manifest asks for, and of the default; not of a cache that needs no direct I/O."""
    disks = "disks: [{name: data, disk: {bus: virtio}, cache: CACHE}]\n      autoattachPodInterface: false\n"
    for cache in ("null", "none", "directsync", "writethrough", "writeback"):
        spec = vmi(tmp_path, devices=f"      {disks.replace('CACHE', cache)}", below=DATA).spec
        found = list(volumes(spec, Facts(no_direct_io=frozenset({"data"})), tmp_path, ()))
        assert len(found) == (cache in ("null", "none", "directsync")), cache
        assert list(volumes(spec, Facts(), tmp_path, ())) == []
    assert "so that its disk has cache: writethrough" in str(
        *volumes(
            vmi(tmp_path, devices=f"      {disks.replace('CACHE', 'none')}", below=DATA).spec,
            Facts(no_direct_io=frozenset({"data"})),
            tmp_path,
            (),
        )
    )


def test_one_image_is_no_two_disks_if_one_of_them_is_written_to(tmp_path: Path) -> None:
    """As a claim that two volumes name, or a file with two names: QEMU fails to get its lock."""
    write(tmp_path, {paths.disk_image("a"): ""})
    for name in "bc":
        place = tmp_path / paths.disk_image(name).lstrip("/")
        place.parent.mkdir(parents=True)
        place.hardlink_to(tmp_path / paths.disk_image("a").lstrip("/"))
    written = [f"{{name: {name}, persistentVolumeClaim: {{claimName: same}}}}" for name in "ab"]
    below = "{name: c, ephemeral: {persistentVolumeClaim: {claimName: same}}}"

    def errors(*volumes: str, disks: str = "") -> list[str]:
        domain = f"      disks: [{disks}]\n"
        return said(tmp_path, domain=domain, below=f"  volumes: [{', '.join(volumes)}]\n")

    assert errors(*written, below) == [
        f"the volumes {first!r} and {second!r}: are one image, {paths.disk_image(second)}, and QEMU writes to no image "
        "that it has open twice; give each an image of its own, or make both disks read-only or shareable"
        for first, second in ("ab", "ac", "bc")
    ]
    reads = "{name: a, disk: {bus: virtio, readonly: true}}, {name: b, cdrom: {bus: scsi}}"
    assert errors(*written, below, disks=reads) == []
    shared = "{name: a, disk: {bus: virtio}, shareable: true}, {name: b, disk: {bus: virtio}, shareable: true}"
    assert errors(*written, disks=shared) == []
    (found,) = errors(*written, disks=shared.replace(", shareable: true}, {", "}, {"))
    assert found.startswith("the volumes 'a' and 'b': are one image")
