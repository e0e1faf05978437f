"""gpu-launcher pod as people call it."""

from pathlib import Path

import pytest
import yaml

from launcher.pod.resources import waits_for
from pci.resource import NODE_DEVICES
from tests.conftest import Command
from tests.launcher.cases import VMS
from tests.launcher.pod.made import IMAGE, text_of
from tests.launcher.pod.test_objects import PODS
from tests.launcher.vms import RTX_2060
from tests.test_project import PYPROJECT

VERSION = PYPROJECT["project"]["version"]


def test_pod_prints_its_objects_and_nothing_else(gpu_launcher: Command) -> None:
    result = gpu_launcher("pod", VMS / "claims.yaml", "--image", IMAGE)
    assert (result.stdout, result.returncode) == (text_of(VMS / "claims.yaml", words=[f"--image={IMAGE}"]), 0)
    assert result.stderr == (
        "gpu-launcher: note: claims: is Pending until a node offers devices.gpu-launcher.dev/kvm "
        "(gpu-plugin does, with node_devices: {kvm: 110} in its config)\n"
    )


def test_who_offers_what_the_pod_waits_for_is_said_as_far_as_names_tell(gpu_launcher: Command, tmp_path: Path) -> None:
    def said(text: str, *flags: str) -> str:
        (tmp_path / "vm.yaml").write_text(text)
        return gpu_launcher("pod", tmp_path / "vm.yaml", *flags).stderr

    gpus = (VMS / "two-gpus.yaml").read_text()
    model = "2 of nvidia.com/GA102_GEFORCE_RTX_3090 (gpu-plugin does, for cards of that name on vfio-pci)\n"
    assert said(gpus).endswith(f" in its config), {model}")
    assert f"devices.kubevirt.io/kvm (KubeVirt does, on its own nodes), {model}" in said(
        gpus, "--node-devices", "devices.kubevirt.io"
    )
    assert "example.com/kvm (by --node-devices), " in said(gpus, "--node-devices", "example.com")
    own = "example.com/gpu (gpu-plugin does by a rule of its config, or another device plugin)"
    assert own in said(gpus.replace("nvidia.com/GA102_GEFORCE_RTX_3090", "example.com/gpu"))


def test_the_name_of_a_plugin_for_containers_is_warned_of(gpu_launcher: Command, tmp_path: Path) -> None:
    """The note said: (gpu-plugin does, for cards of that name on vfio-pci)."""
    text = (VMS / "one-gpu.yaml").read_text()
    for name, whose, write in (("nvidia.com/gpu", "NVIDIA's", "nvidia.com/pgpu, or "), ("amd.com/gpu", "AMD's", "")):
        (tmp_path / "vm.yaml").write_text(text.replace(RTX_2060, name))
        note, warning = gpu_launcher("pod", tmp_path / "vm.yaml", "--image", "l").stderr.splitlines()
        assert f"{name} ({whose} device plugin for containers does)" in note
        assert warning == (
            f"gpu-launcher: warning: one-gpu: asks for {name}, the name of {whose} device plugin for containers, whose "
            f"GPUs the host's driver has; write {write}what the nodes offer to VMs: kubectl get nodes -o yaml has it "
            "below allocatable"
        )


def test_a_grace_period_in_which_no_claim_takes_the_memory_is_warned_of(gpu_launcher: Command, tmp_path: Path) -> None:
    text = (VMS / "no-devices.yaml").read_text()
    annotations = "{gpu-launcher.dev/suspend-to: memory, gpu-launcher.dev/on-drain: suspend}"
    vm = tmp_path / "vm.yaml"
    vm.write_text(text.replace("name: no-devices", f"name: no-devices\n  annotations: {annotations}", 1))
    assert "GracePeriod" not in gpu_launcher("pod", vm, "--image", IMAGE).stderr
    vm.write_text(vm.read_text().replace("GracePeriodSeconds: 2", "GracePeriodSeconds: 0"))
    warning = gpu_launcher("pod", vm, "--image", IMAGE).stderr.splitlines()[-1]
    assert "spec.terminationGracePeriodSeconds: is 0: " in warning
    assert warning.endswith("; then the guest shuts down instead; write 1 or more")


def test_a_pod_that_asks_no_plugin_for_anything_waits_for_nothing() -> None:
    container = {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}}
    assert waits_for("vm", {"containers": [container]}, NODE_DEVICES) is None


def test_the_image_is_of_this_version_and_the_nodes_devices_are_of_our_plugin_unless_it_is_said(
    gpu_launcher: Command,
) -> None:
    said = f"note: the pod's image is gpu-launcher:{VERSION}, which no registry has: name yours with --image\n"
    for flags, image, kvm in (
        ((), f"gpu-launcher:{VERSION}", "devices.gpu-launcher.dev/kvm"),
        (
            ("--image", "example.com/l:2", "--node-devices", "devices.kubevirt.io"),
            "example.com/l:2",
            "devices.kubevirt.io/kvm",
        ),
    ):
        result = gpu_launcher("pod", VMS / "no-devices.yaml", *flags)
        assert (said in result.stderr) is (not flags)
        *_, pod = yaml.safe_load_all(result.stdout)
        (container,) = pod["spec"]["containers"]
        assert container["image"] == image
        assert kvm in container["resources"]["limits"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("claims.yaml", "--block-volume", "other"),
            "--block-volume other: the manifest has no such volume; expected one",
        ),
        (
            ("claims.yaml", "--node-devices", "a/b"),
            "--node-devices a/b: is no domain; expected one like devices.gpu-launcher.dev",
        ),
        (
            ("claims.yaml", "--image", ""),
            "--image : is no image; expected one like registry.example.com/gpu-launcher:1.0",
        ),
        (("none.yaml",), "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    gpu_launcher: Command, arguments: tuple[str, ...], said: str
) -> None:
    result = gpu_launcher("pod", VMS / arguments[0], *arguments[1:])
    assert (result.stdout, result.returncode, result.stderr.count("\n")) == ("", 2, 1)
    assert said in result.stderr


def test_whatever_volume_is_a_block_device_is_said_by_flag(gpu_launcher: Command) -> None:
    flags = [f"--block-volume={name}" for name in ("claim", "data", "scratch")]
    result = gpu_launcher("pod", VMS / "claims.yaml", "--image", IMAGE, *flags)
    printed, golden = (
        [*yaml.safe_load_all(text)][-1] for text in (result.stdout, (PODS / "claims-as-block-devices.yaml").read_text())
    )
    assert printed["spec"]["containers"] == golden["spec"]["containers"]
