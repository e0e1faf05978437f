"""What a pod's volumes say, in a directory that stands for its root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.vm import paths
from launcher.vm.facts import BlockSizes, Facts
from launcher.vm.spec import Spec
from launcher.vm.volumes.facts import facts_of_volumes
from tests.launcher.vm.volumes.pods import vmi_with
from tests.launcher.vms import read_manifest, vmi_text
from tests.processes import ROOT

VOLUMES = """\
  volumes:
  - {name: drivers, containerDisk: {image: drivers}}
  - {name: root, containerDisk: {image: debian}}
  - {name: gone, containerDisk: {image: gone}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    path = tmp_path / "vm.yaml"
    disks = "disks:\n      - {name: data, disk: {bus: virtio}, blockSize: {matchVolume: {}}}\n      gpus:"
    path.write_text(vmi_text().replace("gpus:", disks) + VOLUMES)
    return read_manifest(path).spec


def place(root: Path, path: str, content: bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_an_image_is_qcow2_if_it_begins_like_one(spec: Spec, tmp_path: Path) -> None:
    place(tmp_path, paths.image_volume("drivers") + "/disk/disk.iso", b"\x33\xed\x90")
    place(tmp_path, paths.image_volume("root") + "/disk/disk.qcow2", b"QFI\xfb\0\0\0\3")
    assert facts_of_volumes(spec, tmp_path, Path("/sys")).raw_images == {"drivers"}


def test_a_file_has_the_block_size_of_its_file_system(spec: Spec, tmp_path: Path) -> None:
    place(tmp_path, paths.disk_image("data"), b"")
    found = facts_of_volumes(spec, tmp_path, Path("/sys"))
    size = found.block_sizes["data"].logical
    assert (found.block, found.block_sizes) == (frozenset(), {"data": BlockSizes(size, size, size)})
    assert size >= 512


def test_a_claim_that_is_a_device_is_one_with_the_sizes_of_its_queue(spec: Spec, tmp_path: Path) -> None:
    device = next((entry for entry in Path("/sys/class/block").iterdir() if Path("/dev", entry.name).exists()), None)
    if device is None:
        pytest.skip("no block device here")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/data").symlink_to(Path("/dev", device.name))
    found = facts_of_volumes(spec, tmp_path, Path("/sys"))
    assert (found.block, found.block_sizes["data"].logical) in ((frozenset({"data"}), 512), (frozenset({"data"}), 4096))


_FACTS = """
import sys
from pathlib import Path
from launcher.vm.volumes.facts import facts_of_volumes
from tests.launcher.vms import read_manifest
root = Path(sys.argv[1])
print(sorted(facts_of_volumes(read_manifest(root / "vm.yaml").spec, root, Path("/sys")).no_direct_io))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a ramfs")
def test_a_file_system_that_takes_no_direct_io_is_found_for_what_is_there_and_what_is_to_be_made(
    tmp_path: Path,
) -> None:
    """As ramfs, and as tmpfs before Linux 6.6. A link there is not followed."""
    vmi_with(
        tmp_path,
        "{name: claim, persistentVolumeClaim: {claimName: c}}",
        "{name: here, persistentVolumeClaim: {claimName: c}}",
        "{name: below, ephemeral: {persistentVolumeClaim: {claimName: c}}}",
        "{name: scratch, emptyDisk: {capacity: 1Mi}}",
        "{name: host, hostDisk: {path: /data/a.img, type: DiskOrCreate, capacity: 1Mi}}",
    )
    place(tmp_path, paths.disk_image("here"), b"")
    for directory in (paths.EMPTY_DISKS, paths.EPHEMERAL, f"{paths.PRIVATE}/vmi-disks/claim"):
        (tmp_path / directory.lstrip("/")).mkdir(parents=True)
    (tmp_path / paths.disk_image("below").lstrip("/")).parent.mkdir()
    (tmp_path / paths.disk_image("host").lstrip("/")).parent.mkdir()
    mounts = " && ".join(
        f"mount -t ramfs none {tmp_path}{where}"
        for where in (paths.EMPTY_DISKS, *(f"{paths.PRIVATE}/vmi-disks/{name}" for name in ("claim", "below", "host")))
    )
    files = f"touch {tmp_path}{paths.disk_image('claim')} {tmp_path}{paths.disk_image('below')}"
    within = ("unshare", "--mount", "sh", "-c", f'{mounts} && {files} && exec "$0" "$@"')
    done = subprocess.run(
        [*within, sys.executable, "-c", _FACTS, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("['below', 'claim', 'host', 'scratch']\n", "")


def test_what_is_not_there_says_nothing(spec: Spec, tmp_path: Path) -> None:
    assert facts_of_volumes(spec, tmp_path, Path("/sys")) == Facts()
