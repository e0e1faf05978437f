"""What is on disk for a VM while it runs, and afterwards, in a directory that stands for the pod's root."""

import json
import os
import pickle
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from lxml import etree

from launcher.vm import paths
from launcher.vm.credentials.files import passwords_in
from launcher.vm.facts import Facts
from launcher.vm.paths import below
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.files import credentials_of, shares_of
from launcher.vm.volumes.images import output
from launcher.vm.volumes.media import Share, making_media
from program.errors import Refusal
from tests.launcher.cases import Case, cases
from tests.launcher.vm.volumes.pods import (
    SIZE,
    described,
    mount,
    needed,
    provide,
    put,
    qcow2,
    qemu_img,
    qemu_io,
    read_iso,
    tree,
    vmi_with,
)
from tests.launcher.vms import read_manifest, vmi_text
from tests.processes import ROOT

WITH_VOLUMES = [case for case in cases() if "  volumes:" in case.vm.read_text()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


def prepared(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> AbstractContextManager[None]:
    # Through a pickle, as from the process that reads the manifest to the one that stays.
    return making_media(pickle.loads(pickle.dumps(needed(vmi, facts, root))))


def refusal(vmi: VirtualMachineInstance, root: Path, facts: Facts | None = None) -> str:
    """The words with which it isn't prepared, of which nothing is left."""
    before = tree(root)
    with pytest.raises(Refusal) as refused, prepared(vmi, facts or Facts(), root):
        pass
    assert tree(root) == before
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(str(root), "")


@contextmanager
def left_as_before(root: Path) -> Iterator[None]:
    before = tree(root)
    yield
    assert tree(root) == before


@pytest.mark.parametrize("case", WITH_VOLUMES, ids=lambda case: case.name)
def test_what_a_domain_names_is_there_while_it_runs_and_nothing_more_afterwards(case: Case, root: Path) -> None:
    vmi, facts = read_manifest(case.vm), case.world().facts
    provide(root, vmi, facts)
    sources = etree.fromstring(case.golden.read_text()).xpath(
        "//disk/source/@file | //disk/source/@dev | //backingStore/source/@*"
    )
    with left_as_before(root), prepared(vmi, facts, root):
        assert isinstance(sources, list)
        assert [name for name in sources if not below(root, str(name)).is_file()] == []


def test_what_is_made_is_readable_for_its_owner_alone(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path,
        "{name: seed, cloudInitNoCloud: {userData: 'password: debian'}}",
        "{name: scratch, emptyDisk: {capacity: 1Gi}}",
        "{name: data, hostDisk: {path: /data/disk.img, type: DiskOrCreate, capacity: 1Mi}}",
        "{name: system, containerDisk: {image: debian}}",
    )
    put(root, paths.image_volume("system") + "/disk/disk.img", bytes(1 << 20))
    below(root, paths.disk_image("data")).parent.mkdir(parents=True)
    made = [
        paths.cloud_init_iso("noCloud", "default", "vm"),
        paths.empty_disk("scratch"),
        paths.overlay("system"),
        paths.disk_image("data"),
    ]
    with prepared(vmi, Facts(raw_images=frozenset({"system"})), root):
        for name in made:
            found = below(root, name).lstat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid()), name


def test_cloud_init_finds_its_seed_without_a_cloud(root: Path, tmp_path: Path) -> None:
    seed = "{name: seed, cloudInitNoCloud: {userData: \"#cloud-config\\n\", networkDataBase64: 'dmVyc2lvbjogMg=='}}"
    vmi = vmi_with(tmp_path, seed, name="web.example")
    with left_as_before(root), prepared(vmi, Facts(), root):
        label, files = read_iso(below(root, paths.cloud_init_iso("noCloud", "default", "web.example")))
    metadata = {"instance-id": str(vmi.uuid), "local-hostname": "web"}
    assert json.loads(files.pop("meta-data")) == metadata
    assert (label, files) == ("cidata", {"user-data": b"#cloud-config\n", "network-config": b"version: 2"})


@pytest.mark.parametrize(
    ("name", "hostname", "called"),
    [("web.example", None, "web"), ("web", "mail", "mail"), ("a" * 62 + "-b", None, "a" * 62)],
)
def test_a_guest_is_called_as_the_manifest_says_or_as_the_vm_as_far_as_dns_allows(
    root: Path, tmp_path: Path, name: str, hostname: str | None, called: str
) -> None:
    spec = f"  hostname: {hostname}\n" if hostname else ""
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}", name=name, spec=spec)
    with prepared(vmi, Facts(), root):
        _, files = read_iso(below(root, paths.cloud_init_iso("noCloud", "default", name)))
    assert json.loads(files["meta-data"])["local-hostname"] == called


def test_a_seed_with_network_data_alone_has_empty_user_data(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {networkData: 'version: 2'}}")
    with prepared(vmi, Facts(), root):
        _, files = read_iso(below(root, paths.cloud_init_iso("noCloud", "default", "vm")))
    assert (files["user-data"], files["network-config"]) == (b"", b"version: 2")


def test_a_config_drive_is_laid_out_as_openstacks(root: Path, tmp_path: Path) -> None:
    drive = "{name: drive, cloudInitConfigDrive: {userDataBase64: 'IyEvYmluL3No', networkData: '{}'}}"
    vmi = vmi_with(tmp_path, drive, spec="  hostname: mail\n")
    with left_as_before(root), prepared(vmi, Facts(), root):
        label, files = read_iso(below(root, paths.cloud_init_iso("configdrive", "default", "vm")))
    metadata = json.loads(files.pop("openstack/latest/meta_data.json"))
    assert metadata == {"instance_id": "vm.default", "hostname": "mail", "uuid": str(vmi.uuid)}
    latest = {"openstack/latest/user_data": b"#!/bin/sh", "openstack/latest/network_data.json": b"{}"}
    assert (label, files) == ("config-2", latest)


@pytest.mark.parametrize("keys", [("userdata", "networkdata"), ("userData", "networkData")])
def test_data_for_cloud_init_comes_from_secrets_by_either_spelling(
    root: Path, tmp_path: Path, keys: tuple[str, str]
) -> None:
    seed = "{name: seed, cloudInitNoCloud: {secretRef: {name: login}, networkDataSecretRef: {name: net}}}"
    vmi = vmi_with(tmp_path, seed)
    mount(root, paths.mounted("secret", "seed"), {keys[0]: b"\xff\0 user", keys[1]: b"network"})
    with prepared(vmi, Facts(), root):
        _, files = read_iso(below(root, paths.cloud_init_iso("noCloud", "default", "vm")))
    assert (files["user-data"], files["network-config"]) == (b"\xff\0 user", b"network")


BY_CLOUD_INIT = """\
  accessCredentials:
  - sshPublicKey: {{source: {{secret: {{secretName: team}}}}, propagationMethod: {{{method}: {{}}}}}}
  - sshPublicKey: {{source: {{secret: {{secretName: mine}}}}, propagationMethod: {{{method}: {{}}}}}}
  - sshPublicKey: {{source: {{secret: {{secretName: team}}}}, propagationMethod: {{qemuGuestAgent: {{users: [a, b]}}}}}}
  - userPassword: {{source: {{secret: {{secretName: words}}}}, propagationMethod: {{qemuGuestAgent: {{}}}}}}
"""


@pytest.mark.parametrize(
    ("method", "volume", "iso", "file", "name"),
    [
        ("noCloud", "cloudInitNoCloud", "noCloud", "meta-data", "public-keys"),
        ("configDrive", "cloudInitConfigDrive", "configdrive", "openstack/latest/meta_data.json", "public_keys"),
    ],
)
def test_cloud_init_gets_each_key_of_the_secrets_by_a_number(
    root: Path, tmp_path: Path, method: str, volume: str, iso: Literal["noCloud", "configdrive"], file: str, name: str
) -> None:
    spec = BY_CLOUD_INIT.format(method=method)
    vmi = vmi_with(tmp_path, f"{{name: seed, {volume}: {{userData: x}}}}", spec=spec)
    mount(root, paths.credentials("team"), {"b": b"ssh-rsa B\n", "a": b"# of the team\n ssh-rsa A1 x\r\n\nssh-rsa A2"})
    mount(root, paths.credentials("mine"), {"key": b"ssh-ed25519 M\n"})
    with prepared(vmi, Facts(), root):
        _, files = read_iso(below(root, paths.cloud_init_iso(iso, "default", "vm")))
    keys = {"0": "ssh-rsa A1 x", "1": "ssh-rsa A2", "2": "ssh-rsa B", "3": "ssh-ed25519 M"}
    assert json.loads(files[file])[name] == keys


def test_a_secret_of_keys_that_is_not_mounted_is_named_with_its_place(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}", spec=BY_CLOUD_INIT.format(method="noCloud")
    )
    place = paths.credentials("team")
    assert refusal(vmi, root).endswith(
        f"cannot be read: No such file or directory; expected the pod to mount it at {place}"
    )


def test_the_guests_agent_gets_the_rest(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}", spec=BY_CLOUD_INIT.format(method="noCloud")
    )
    mount(root, paths.credentials("words"), {"root": b" secret word\n", "nobody": b"\n"})
    keys, passwords = credentials_of(vmi, root)
    assert (keys.secret, keys.users, passwords.users) == ("team", ("a", "b"), ())
    assert passwords_in(passwords.files()) == {"root": "secret word"}


def shared(tmp_path: Path, volume: str) -> VirtualMachineInstance:
    """A VM whose guest mounts this one volume, called data."""
    return vmi_with(tmp_path, volume, devices="      filesystems: [{name: data, virtiofs: {}}]\n")


@pytest.mark.parametrize(
    ("volume", "place", "read_only"),
    [
        ("persistentVolumeClaim: {claimName: c}", str(Path(paths.disk_image("data")).parent), False),
        ("persistentVolumeClaim: {claimName: c, readOnly: true}", str(Path(paths.disk_image("data")).parent), True),
        ("dataVolume: {name: d}", str(Path(paths.disk_image("data")).parent), False),
        ("configMap: {name: c}", paths.mounted("config-map", "data"), True),
        ("secret: {secretName: s}", paths.mounted("secret", "data"), True),
        ("downwardAPI: {}", paths.mounted("downwardapi", "data"), True),
        ("serviceAccount: {serviceAccountName: a}", paths.SERVICE_ACCOUNT, True),
        ("containerPath: {path: /srv/data}", "/srv/data", True),
        ("containerPath: {path: /srv/data/, readOnly: false}", "/srv/data", False),
    ],
)
def test_the_guest_mounts_a_volume_where_the_pod_has_it(
    root: Path, tmp_path: Path, volume: str, place: str, read_only: bool
) -> None:
    vmi = shared(tmp_path, f"{{name: data, {volume}}}")
    (share,) = shares_of(vmi, root)
    socket = below(root, "/var/run/kubevirt/virtiofs-containers/data.sock")
    assert share == Share("data", below(root, place), socket, read_only)
    assert refusal(vmi, root) == (
        f"the volume 'data': cannot be read: No such file or directory; expected the pod to mount it at {place}"
    )
    share.directory.mkdir(parents=True)
    assert needed(vmi, Facts(), root) == ()


def test_a_block_device_is_no_directory_to_mount(root: Path, tmp_path: Path) -> None:
    vmi = shared(tmp_path, "{name: data, persistentVolumeClaim: {claimName: c}}")
    assert refusal(vmi, root, Facts(block=frozenset({"data"}))) == (
        "the volume 'data': its claim is a block device; expected volumeMode: Filesystem, for virtiofs"
    )


@pytest.mark.parametrize("to", ["run/gpu-launcher", "run", "."])
def test_no_link_shows_the_guest_what_is_the_launchers_own(root: Path, tmp_path: Path, to: str) -> None:
    vmi = shared(tmp_path, "{name: data, containerPath: {path: /srv/vol/link}}")
    below(root, "/srv/vol").mkdir(parents=True)
    below(root, "/run/gpu-launcher").mkdir(parents=True)
    below(root, "/srv/vol/link").symlink_to(root / to)
    assert "which is the launcher's own; take the link away" in refusal(vmi, root)


def test_a_file_is_no_directory_to_mount(root: Path, tmp_path: Path) -> None:
    vmi = shared(tmp_path, "{name: data, containerPath: {path: /srv/data}}")
    put(root, "/srv/data")
    assert "/srv/data is no directory; expected one, for virtiofs" in refusal(vmi, root)


def test_a_secret_without_the_key_is_named_with_the_keys_that_it_has(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {secretRef: {name: login}}}")
    mount(root, paths.mounted("secret", "seed"), {"user-data": b"", "password": b""})
    assert refusal(vmi, root) == (
        "the volume 'seed': the secret 'login' has no key 'userdata'; expected it, or 'userData', "
        "with data for cloud-init, and not only 'password', 'user-data'"
    )


def test_a_secret_that_is_not_mounted_is_named_with_its_place(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {secretRef: {name: login}}}")
    place = paths.mounted("secret", "seed")
    assert refusal(vmi, root) == (
        f"the volume 'seed': cannot be read: No such file or directory; expected the pod to mount it at {place}"
    )


def test_files_of_kubernetes_become_media_with_their_labels(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path,
        "{name: settings, configMap: {name: settings, volumeLabel: 'a=1, b!'}}",
        "{name: password, secret: {secretName: password}}",
        "{name: account, serviceAccount: {serviceAccountName: default}}",
        "{name: labels, downwardAPI: {volumeLabel: twenty characters and}}",
        "{name: answers, sysprep: {secret: {name: windows}}}",
    )
    long = "x" * 200
    mount(root, paths.mounted("config-map", "settings"), {long: b"long", "app.conf": b"", ".hidden": b"h"})
    mount(root, paths.mounted("secret", "password"), {"password": bytes(range(256))})
    mount(root, paths.mounted("downwardapi", "labels"), {"pod/labels/all": b"app=x", "größe": b"1"})
    mount(root, paths.mounted("sysprep", "answers"), {"Autounattend.xml": b"<unattend/>"})
    mount(root, paths.SERVICE_ACCOUNT, {"token": b"t"})
    with left_as_before(root), prepared(vmi, Facts(), root):
        found = {
            volume: read_iso(below(root, place))
            for volume, place in {
                "settings": paths.iso("config-map", "settings"),
                "password": paths.iso("secret", "password"),
                "account": paths.SERVICE_ACCOUNT_ISO,
                "labels": paths.iso("downwardapi", "labels"),
                "answers": paths.iso("sysprep", "answers"),
            }.items()
        }
    assert found == {
        "settings": ("a=1, b!", {long: b"long", "app.conf": b"", ".hidden": b"h"}),
        "password": ("cfgdata", {"password": bytes(range(256))}),
        "account": ("cfgdata", {"token": b"t"}),
        "labels": ("twenty characters and", {"pod/labels/all": b"app=x", "größe": b"1"}),
        "answers": ("unattendCD", {"Autounattend.xml": b"<unattend/>"}),
    }


def test_names_that_are_one_to_windows_first_64_characters_stay_two_files(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: settings, configMap: {name: settings}}")
    files = {f"{'y' * 70}{number}": bytes([number]) for number in range(3)}
    mount(root, paths.mounted("config-map", "settings"), files)
    with prepared(vmi, Facts(), root):
        assert read_iso(below(root, paths.iso("config-map", "settings"))) == ("cfgdata", files)


def test_an_optional_config_map_that_is_not_there_is_an_empty_medium(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: settings, configMap: {name: settings, optional: true}}")
    below(root, paths.mounted("config-map", "settings")).mkdir(parents=True)
    with prepared(vmi, Facts(), root):
        assert read_iso(below(root, paths.iso("config-map", "settings"))) == ("cfgdata", {})


def test_windows_needs_an_answer_file(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: answers, sysprep: {configMap: {name: windows}}}")
    mount(root, paths.mounted("sysprep", "answers"), {"answers.xml": b""})
    assert refusal(vmi, root) == (
        "the volume 'answers': has no answer file for Windows: mounted is 'answers.xml'; "
        "expected autounattend.xml or unattend.xml"
    )


def test_a_guest_reads_its_config_by_ignition_from_a_file_of_its_own(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    config = json.dumps({"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/a,b", "contents": {}}]}})
    annotations = json.dumps({"kubevirt.io/ignitiondata": config})
    path.write_text(vmi_text().replace("{name: vm}", f"{{name: vm, annotations: {annotations}}}"))
    put(root, paths.IGNITION, b"an earlier start's")
    with prepared(read_manifest(path), Facts(), root):
        file = below(root, paths.IGNITION)
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (config, 0o600)
    assert not file.exists()


def test_an_image_that_a_killed_launcher_has_left_is_made_anew(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {userData: new}}")
    place = put(root, paths.cloud_init_iso("noCloud", "default", "vm"), b"old")
    with prepared(vmi, Facts(), root):
        assert read_iso(place)[1]["user-data"] == b"new"
    assert not place.exists()


def test_an_empty_disk_has_its_capacity_in_whole_mebibytes(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: scratch, emptyDisk: {capacity: 2000000}}")
    with left_as_before(root), prepared(vmi, Facts(), root):
        said = described(below(root, paths.empty_disk("scratch")))
    assert (said["format"], said["virtual-size"]) == ("qcow2", 1 << 20)


def test_what_a_guest_has_written_is_there_at_its_next_start_in_the_pod(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path,
        "{name: scratch, emptyDisk: {capacity: 16Mi}}",
        "{name: system, containerDisk: {image: debian}}",
        "{name: data, ephemeral: {persistentVolumeClaim: {claimName: data}}}",
    )
    qcow2(below(root, paths.image_volume("system") + "/disk/disk.qcow2"))
    put(root, paths.disk_image("data"), bytes(SIZE))
    images = [
        below(root, name) for name in (paths.empty_disk("scratch"), paths.overlay("system"), paths.overlay("data"))
    ]
    with prepared(vmi, Facts(), root):
        for image in images:
            qemu_io(image, "write -P 7 1M 64k")
    with prepared(vmi, Facts(), root):
        for image in images:
            assert "Pattern verification failed" not in qemu_io(image, "read -P 7 1M 64k")
    assert all(image.exists() for image in images)


@pytest.mark.parametrize("kind", ["qcow2", "raw"])
def test_an_overlay_is_over_the_disk_of_the_image_in_its_format(root: Path, tmp_path: Path, kind: str) -> None:
    vmi = vmi_with(tmp_path, "{name: other, emptyDisk: {capacity: 1Mi}}", "{name: system, containerDisk: {image: x}}")
    image = below(root, paths.image_volume("system") + "/disk/disk.img")
    image.parent.mkdir(parents=True)
    qemu_img("create", "-q", "-f", kind, image, str(SIZE))
    raw = frozenset({"system"}) if kind == "raw" else frozenset[str]()
    with left_as_before(root), prepared(vmi, Facts(raw_images=raw), root):
        said = described(below(root, paths.overlay("system")))
        link = below(root, paths.container_disk(1))
        assert link.resolve() == image
    assert (said["virtual-size"], said["full-backing-filename"]) == (SIZE, str(link))
    assert (said["format"], said["backing-filename-format"]) == ("qcow2", kind)


def test_the_disk_is_the_file_that_the_manifest_names(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x, path: /images/two.qcow2}}")
    for name in ("/images/one.qcow2", "/images/two.qcow2"):
        qcow2(below(root, paths.image_volume("system") + name))
    with prepared(vmi, Facts(), root):
        assert below(root, paths.container_disk(0)).resolve().name == "two.qcow2"


def test_an_image_without_one_disk_is_refused_with_what_is_there(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x}}")
    named = vmi_with(tmp_path, "{name: system, containerDisk: {image: x, path: /disk/c}}")
    place = paths.image_volume("system")
    said = "the volume 'system': its image"
    assert refusal(vmi, root) == f"{said} is not mounted at {place}; expected an image volume of the pod there"
    below(root, place).mkdir(parents=True)
    fix = "put one there, or name its file in containerDisk.path"
    assert refusal(vmi, root) == f"{said} has no disk in {place}/disk; {fix}"
    for name in "ab":
        put(root, f"{place}/disk/{name}")
    several = f"{said} has several files in {place}/disk: a, b; name the disk in containerDisk.path"
    assert refusal(vmi, root) == several
    missing = f"{said}, mounted at {place}, has no file /disk/c; expected containerDisk.path to name its disk"
    assert refusal(named, root) == missing


def test_no_link_in_an_image_leads_the_guest_to_a_file_of_the_pod(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x}}")
    put(root, "/etc/shadow", b"root:")
    directory = below(root, paths.image_volume("system") + "/disk")
    directory.mkdir(parents=True)
    (directory / "disk.img").symlink_to("../../../../../../etc/shadow")
    assert (directory / "disk.img").read_bytes() == b"root:"
    assert "has no disk in" in refusal(vmi, root)


def test_no_image_has_the_guest_read_another_file_of_the_pod(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x}}")
    image = below(root, paths.image_volume("system") + "/disk/disk.qcow2")
    image.parent.mkdir(parents=True)
    secret = put(tmp_path, "secret", bytes(SIZE))
    qemu_img("create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", image)
    assert "has a backing file; expected one image alone, as qemu-img convert makes it" in refusal(vmi, root)
    image.unlink()
    qemu_img("create", "-q", "-f", "qcow2", "-o", f"data_file={secret},data_file_raw=on", image, str(SIZE))
    assert "has a data file; expected one image alone, as qemu-img convert makes it" in refusal(vmi, root)
    image.write_bytes(image.read_bytes()[:50])
    assert "is 50 bytes long; expected a whole qcow2 image, copy it again" in refusal(vmi, root)


def test_a_file_that_is_no_image_is_no_disk(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x}}")
    place = paths.image_volume("system") + "/disk/README"
    for content in (b"", b"The disk is elsewhere."):
        put(root, place, content)
        assert refusal(vmi, root, Facts(raw_images=frozenset({"system"}))) == (
            f"the volume 'system': {place} has {len(content)} bytes; expected a disk image, qcow2 or raw with sectors "
            "of 512"
        )


def test_an_image_that_qemu_cannot_open_is_refused_in_its_words(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: system, containerDisk: {image: x}}")
    put(root, paths.image_volume("system") + "/disk/disk.qcow2", b"QFI\xfb" + bytes(200))
    assert "Unsupported qcow2 version 0" in refusal(vmi, root)


def test_a_file_of_the_nodes_is_made_once_and_stays(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: data, hostDisk: {path: /srv/vm.img, type: DiskOrCreate, capacity: 64Mi}}")
    file = below(root, paths.disk_image("data", "vm.img"))
    file.parent.mkdir(parents=True)
    with prepared(vmi, Facts(), root):
        assert (file.stat().st_size, file.stat().st_blocks) == (64 << 20, 0)
        with file.open("r+b") as disk:
            disk.write(b"guest")
    with left_as_before(root), prepared(vmi, Facts(), root):
        assert file.read_bytes().startswith(b"guest")


def test_a_file_of_the_nodes_has_a_size_that_any_disk_can_write(root: Path, tmp_path: Path) -> None:
    """QEMU takes none of 65,000,000 bytes where blocks have 4096."""
    vmi = vmi_with(tmp_path, "{name: data, hostDisk: {path: /srv/vm.img, type: DiskOrCreate, capacity: 65M}}")
    file = below(root, paths.disk_image("data", "vm.img"))
    file.parent.mkdir(parents=True)
    with prepared(vmi, Facts(), root):
        assert file.stat().st_size == 65_003_520


def test_a_file_of_the_nodes_that_is_not_there_is_made_only_as_the_manifest_says(root: Path, tmp_path: Path) -> None:
    file = paths.disk_image("data", "vm.img")
    said = f"the volume 'data': {file}, which is /srv/vm.img of the node, is not there"

    def words(rest: str) -> str:
        return refusal(vmi_with(tmp_path, f"{{name: data, hostDisk: {{path: /srv/vm.img, {rest}}}}}"), root)

    assert words("type: Disk") == f"{said}; put a disk image there, or write type: DiskOrCreate with a capacity"
    assert words("type: DiskOrCreate") == f"{said}; write its capacity, with which it is made"
    unmounted = f"{said}: No such file or directory; expected the pod to mount it there"
    assert words("type: DiskOrCreate, capacity: 1Mi") == unmounted
    below(root, file).parent.mkdir(parents=True)
    assert words("type: DiskOrCreate, capacity: 4E").startswith(
        f"{said}, and is to have 4000000000000000000 bytes, and "
    )


def test_a_claim_without_a_disk_is_refused_with_both_places(root: Path, tmp_path: Path) -> None:
    for source in ("persistentVolumeClaim: {claimName: data}", "ephemeral: {persistentVolumeClaim: {claimName: data}}"):
        vmi = vmi_with(tmp_path, f"{{name: data, {source}}}")
        assert refusal(vmi, root) == (
            "the volume 'data': its claim has no disk: there is neither /dev/data nor "
            f"{paths.disk_image('data')}; expected the file disk.img at the top of the claim, in raw format, "
            "or a claim with volumeMode: Block"
        )


def test_efis_variables_have_a_directory_to_stay_in(root: Path, tmp_path: Path) -> None:
    firmware = "    firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}\n"
    vmi = vmi_with(tmp_path, domain=firmware)
    with left_as_before(root), prepared(vmi, Facts(), root):
        assert below(root, paths.NVRAM).is_dir()
    with prepared(vmi, Facts(), root):
        variables = put(root, f"{paths.NVRAM}/vm_VARS.fd", b"what libvirt makes")
    assert variables.exists()


def test_what_is_in_the_way_is_named_and_stays(root: Path, tmp_path: Path) -> None:
    disk = vmi_with(tmp_path, "{name: scratch, emptyDisk: {capacity: 1Mi}}")
    place = put(root, paths.empty_disk("scratch"), b"somebody's")
    there = (
        f"{paths.empty_disk('scratch')}: is there and is no qcow2 image; take it away, the guest's disk is made there"
    )
    assert refusal(disk, root) == there
    place.unlink()
    place.mkdir()
    assert refusal(disk, root) == there
    seed = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}")
    iso = paths.cloud_init_iso("noCloud", "default", "vm")
    below(root, iso).mkdir(parents=True)
    in_the_way = "something else is in the way there; take it away"
    assert refusal(seed, root) == f"{iso}: cannot be made: Is a directory; {in_the_way}"
    below(root, iso).rmdir()
    below(root, iso).parent.rmdir()
    directory = put(root, str(Path(iso).parent))
    assert refusal(seed, root) == f"/{directory.relative_to(root)}: cannot be made: File exists; {in_the_way}"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: scratch, emptyDisk: {capacity: 1Mi}}")
    there = Path("/sys")  # where root may not make directories either
    with pytest.raises(Refusal) as refused, prepared(vmi, Facts(), there):
        pass
    assert str(refused.value).startswith(f"{there}/var/run/libvirt/empty-disks: cannot be made: ")
    assert str(refused.value).endswith("; expected a volume that this process can write, as an emptyDir is")


_PREPARE = """
import sys
from pathlib import Path
from program.errors import Refusal
from launcher.vm.facts import Facts
from tests.launcher.vms import read_manifest
from launcher.vm.volumes.media import making_media
from launcher.vm.files import needs_of
from launcher.vm.volumes.images import output
try:
    with making_media(needs_of(read_manifest(Path(sys.argv[1])), Facts(), Path(sys.argv[2])).needs):
        print("prepared")
except Refusal as refusal:
    print(refusal)
"""

NO_ROOM = "make room in its volume, or raise the volume's size or sizeLimit"


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ("{name: seed, cloudInitNoCloud: {userData: x}}", NO_ROOM),
        ("{name: data, hostDisk: {path: /data/disk.img, type: DiskOrCreate, capacity: 1Gi}}", NO_ROOM),
        ("{name: scratch, emptyDisk: {capacity: 1Gi}}", "qemu-img create"),
    ],
    ids=["iso", "raw", "qcow2"],
)
def test_a_full_disk_is_said_in_one_line_and_nothing_is_left(
    root: Path, tmp_path: Path, volume: str, words: str
) -> None:
    """A limit on the size of files stands for it: 64 KiB are less than any image."""
    vmi_with(tmp_path, volume)
    below(root, paths.disk_image("data")).parent.mkdir(parents=True)
    with left_as_before(root):
        done = subprocess.run(
            (sys.executable, "-c", _PREPARE, tmp_path / "vm.yaml", root),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
        )
    assert words in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_program_that_is_not_installed_is_named_with_its_package() -> None:
    with pytest.raises(Refusal) as refused:
        output(("no-such-program", "--help"), package="some-package")
    said = "no-such-program: is not installed, and makes the guest's disks; install the package some-package"
    assert str(refused.value) == said


def test_a_pod_needs_no_directory_for_temporary_files(root: Path, tmp_path: Path) -> None:
    vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}")
    done = subprocess.run(
        (sys.executable, "-c", _PREPARE, tmp_path / "vm.yaml", root),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "nowhere")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("prepared\n", "")


def test_what_was_made_before_something_is_missing_is_gone(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path,
        "{name: seed, cloudInitNoCloud: {userData: x}}",
        "{name: scratch, emptyDisk: {capacity: 1Mi}}",
        "{name: gone, persistentVolumeClaim: {claimName: gone}}",
    )
    assert "its claim has no disk" in refusal(vmi, root)


def test_a_guest_that_could_not_start_leaves_what_was_there(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: seed, cloudInitNoCloud: {userData: x}}", "{name: s, emptyDisk: {capacity: 1Mi}}")
    with left_as_before(root), pytest.raises(KeyboardInterrupt), prepared(vmi, Facts(), root):
        raise KeyboardInterrupt


def test_of_two_launchers_on_one_place_the_second_leaves_the_firsts_disk(root: Path, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, "{name: scratch, emptyDisk: {capacity: 16Mi}}")
    image = below(root, paths.empty_disk("scratch"))
    with prepared(vmi, Facts(), root):
        with prepared(vmi, Facts(), root):
            qemu_io(image, "write -P 7 1M 64k")
        assert image.exists()
    assert image.exists()
