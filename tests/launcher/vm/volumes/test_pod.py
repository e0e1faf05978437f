"""What the pod mounts, and what it cannot."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.vm import paths
from program.errors import UserError
from tests.launcher.cases import VMS
from tests.launcher.pod.made import container_of, objects_of, pod_of, text_of, written_vm
from tests.launcher.vm.volumes.pods import qemu_img


def mounted(vm: Path, name: str, block: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Where the container has a volume, without its name."""
    found = container_of(vm, block)["volumeMounts"]
    return [{key: value for key, value in mount.items() if key != "name"} for mount in found if mount["name"] == name]


def source(vm: Path, name: str) -> Any:
    (volume,) = (volume for volume in pod_of(vm)["spec"]["volumes"] if volume["name"] == name)
    return {key: value for key, value in volume.items() if key != "name"}


def test_a_claim_is_a_directory_with_the_disk_in_it_or_a_block_device() -> None:
    vm = VMS / "claims.yaml"
    assert mounted(vm, "claim") == [{"mountPath": "/var/run/kubevirt-private/vmi-disks/claim"}]
    assert container_of(vm, frozenset({"claim"}))["volumeDevices"] == [{"name": "claim", "devicePath": "/dev/claim"}]
    assert mounted(vm, "claim", frozenset({"claim"})) == []


def test_a_data_volume_is_the_claim_of_its_name() -> None:
    assert source(VMS / "claims.yaml", "data") == {"persistentVolumeClaim": {"claimName": "data"}}


def test_what_is_below_an_overlay_is_mounted_read_only() -> None:
    (mount,) = mounted(VMS / "claims.yaml", "scratch")
    assert mount["readOnly"]


def test_an_image_is_mounted_whole_and_the_node_gets_it_with_the_vms_secret() -> None:
    vm = VMS / "container-disks.yaml"
    assert mounted(vm, "system") == [{"mountPath": paths.image_volume("system"), "readOnly": True}]
    assert source(vm, "system") == {
        "image": {"reference": "registry.example.com/debian:13", "pullPolicy": "IfNotPresent"}
    }
    assert pod_of(vm)["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_a_file_of_the_nodes_is_mounted_alone_also_where_the_kubelet_makes_it() -> None:
    vm = VMS / "host-disk.yaml"
    assert source(vm, "media") == {"hostPath": {"path": "/data/media.iso", "type": "File"}}
    assert mounted(vm, "media") == [{"mountPath": "/var/run/kubevirt-private/vmi-disks/media/media.iso"}]
    assert source(vm, "made") == {"hostPath": {"path": "/data/made.img", "type": "FileOrCreate"}}
    assert mounted(vm, "made") == [{"mountPath": "/var/run/kubevirt-private/vmi-disks/made/made.img"}]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("secretRef: {name: user}", {"secret": {"secretName": "user"}}),
        ("networkDataSecretRef: {name: net}", {"secret": {"secretName": "net"}}),
        ("secretRef: {name: both}, networkDataSecretRef: {name: both}", {"secret": {"secretName": "both"}}),
        (
            "secretRef: {name: user}, networkDataSecretRef: {name: net}",
            {"projected": {"sources": [{"secret": {"name": "net"}}, {"secret": {"name": "user"}}]}},
        ),
    ],
)
def test_cloud_inits_secrets_are_in_one_directory(tmp_path: Path, said: str, expected: Any) -> None:
    vm = written_vm(tmp_path / "vm.yaml", spec=f"  volumes: [{{name: seed, cloudInitNoCloud: {{{said}}}}}]\n")
    assert source(vm, "seed") == expected
    assert mounted(vm, "seed") == [{"mountPath": paths.mounted("secret", "seed"), "readOnly": True}]


def test_cloud_init_without_a_secret_takes_nothing_of_the_pods() -> None:
    assert "seed" not in [volume["name"] for volume in pod_of(VMS / "cloud-init-no-cloud.yaml")["spec"]["volumes"]]


def test_only_a_guest_that_gets_a_token_has_one_in_its_pod(tmp_path: Path) -> None:
    spec = pod_of(VMS / "made-isos.yaml")["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("default", True)
    spec = pod_of(written_vm(tmp_path / "vm.yaml"))["spec"]
    assert ("serviceAccountName" in spec, spec["automountServiceAccountToken"]) == (False, False)


def test_what_outlives_the_pod_is_in_a_claim_that_both_the_firmware_and_the_tpm_use(tmp_path: Path) -> None:
    domain = "    firmware: {bootloader: {efi: {persistent: true}}}\n"
    vm = written_vm(tmp_path / "vm.yaml", domain=domain)
    vm.write_text(vm.read_text().replace("    devices:\n", "    devices:\n      tpm: {persistent: true}\n"))
    claim = objects_of(vm)["PersistentVolumeClaim"]["metadata"]["name"]
    assert source(vm, "gpu-launcher-state") == {"persistentVolumeClaim": {"claimName": claim}}
    assert mounted(vm, "gpu-launcher-state") == [
        {"mountPath": paths.NVRAM, "subPath": "nvram"},
        {"mountPath": paths.TPM_STATE, "subPath": "swtpm"},
        {"mountPath": paths.SWTPM_CA, "subPath": "swtpm-localca"},
    ]


def test_the_claim_for_a_suspended_guests_memory_is_where_the_launcher_looks_for_it(tmp_path: Path) -> None:
    vm = written_vm(tmp_path / "vm.yaml")
    annotated = "name: vm, annotations: {gpu-launcher.dev/suspend-to: memory}"
    vm.write_text(vm.read_text().replace("name: vm", annotated, 1))
    assert source(vm, "gpu-launcher-suspended") == {"persistentVolumeClaim": {"claimName": "memory"}}
    assert mounted(vm, "gpu-launcher-suspended") == [{"mountPath": paths.SUSPENDED, "subPath": "suspended"}]


def test_a_guest_that_keeps_nothing_has_no_claim() -> None:
    for name in ("no-devices", "tpm", "efi-without-secure-boot"):
        assert list(objects_of(VMS / f"{name}.yaml")) == ["ConfigMap", "Pod"]


def test_empty_disks_have_room_for_their_capacities_and_their_tables_and_no_more(tmp_path: Path) -> None:
    disks = "{name: a, emptyDisk: {capacity: 100Ti}}, {name: b, emptyDisk: {capacity: 2000000}}"
    vm = written_vm(tmp_path / "vm.yaml", spec=f"  volumes: [{disks}]\n")
    assert source(vm, "gpu-launcher-empty-disks") == {"emptyDir": {"sizeLimit": "111411204Mi"}}
    full = json.loads(qemu_img("measure", "-O", "qcow2", "--size", "100T", "--output=json").stdout)["fully-allocated"]
    assert full < 111411201 << 20 < 1.07 * full


def test_huge_pages_are_mounted_where_they_are_not_from_memfd() -> None:
    found = source(VMS / "hugepages-without-memfd.yaml", "gpu-launcher-hugepages")
    assert found == {"emptyDir": {"medium": "HugePages-2Mi"}}
    assert mounted(VMS / "hugepages.yaml", "gpu-launcher-hugepages") == []


def refused(vm: Path, block: frozenset[str] = frozenset()) -> str:
    with pytest.raises(UserError) as error:
        text_of(vm, block)
    return str(error.value)


def test_what_no_pod_can_mount_is_refused_by_its_path(tmp_path: Path) -> None:
    def vm(volume: str) -> Path:
        first = "{name: first, emptyDisk: {capacity: 1Gi}}"
        return written_vm(tmp_path / "vm.yaml", spec=f"  volumes: [{first}, {volume}]\n")

    claim = "persistentVolumeClaim: {claimName: c}"
    assert refused(vm("{name: d, hostDisk: {path: '/data/a:b', type: Disk}}")) == (
        "spec.volumes[1].hostDisk.path: '/data/a:b' has a colon in its name, and Kubernetes mounts no such path; "
        "rename the file"
    )
    assert refused(vm(f"{{name: kvm, {claim}}}"), frozenset({"kvm"})) == (
        "spec.volumes[1].name: 'kvm' would be /dev/kvm, which is there already; rename it, and its disk"
    )
    assert refused(vm(f"{{name: gpu-launcher-run, {claim}}}")) == (
        "spec.volumes: 'gpu-launcher-run' is what a volume of the pod's is called already; rename it, and its disk"
    )
    assert refused(vm(f"{{name: d, {claim}}}"), frozenset({"first"})) == (
        "--block-volume first: the volume is of kind emptyDisk; expected one with a claim"
    )
    loop = "{name: d, downwardAPI: {fields: [&a {path: *a}]}}"
    assert refused(vm(loop)).startswith("spec.volumes[1].downwardAPI.fields[0].path.path.")
