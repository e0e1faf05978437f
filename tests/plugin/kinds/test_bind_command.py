import json
import re
from pathlib import Path

import pytest

from pci.sysfs.functions import read_host
from pci.vendors import PREFIXES
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice
from plugin.state_files import boot_id
from tests.compose import SYSFS
from tests.conftest import Command, Machine
from tests.kernel import bind, load, process, vfio_group
from tests.kubelet import Kubelet
from tests.plugin.kinds.bound import BOUND, DAILY, GPU, Node, lines, rtx
from tests.processes import FIXTURES


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, rtx())


def test_a_dry_run_prints_the_writes_as_a_shell_would_do_them_and_does_none(
    gpu_plugin: Command, node: Node, tmp_path: Path
) -> None:
    for _ in range(2):
        result = gpu_plugin("bind", "0000:01:00.1", "--dry-run", "--sysfs", node.sys, "--state", tmp_path / "new")
        assert result.stdout == "".join(f"{line}\n" for line in BOUND)
        assert (result.stderr, result.returncode) == ("", 0)
    assert node.drivers() == list(DAILY)
    assert not (tmp_path / "new").exists()


def test_an_address_of_domain_0_needs_no_domain_as_lspci_prints_it(gpu_plugin: Command, node: Node) -> None:
    result = gpu_plugin("bind", "01:00.0", "--dry-run", "--sysfs", node.sys, "--state", node.roots.state)
    assert (result.stdout.splitlines(), result.returncode) == ([*BOUND], 0)


def test_a_dry_run_of_unbind_knows_the_former_drivers(gpu_plugin: Command, node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    result = gpu_plugin("unbind", "--all", "--dry-run", "--sysfs", node.sys, "--state", node.roots.state)
    assert result.stdout == "".join(f"{line}\n" for line in lines(node.to_unbind(GPU)))
    assert "echo nouveau > " in result.stdout


#: By machine: the discrete cards, which --all names when they are on their host's drivers.
DISCRETE = {
    "hgx-a100-8-gpu": [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")],
    "lab-bare": [],
    "lab-legacy": [],
    "lab-modern": [],
    "rtx-2060": ["0000:01:00.0"],
    "rtx-2060-audio-on-snd-hda-intel": ["0000:01:00.0"],
    "rtx-2060-without-iommu": [],
    "two-cards-nested-vfio": [],
    "two-gpus-one-group": ["0000:01:00.0", "0000:02:00.0"],
    "two-h100": ["0000:41:00.0", "0000:c1:00.0"],
    "cards-of-several-groups": ["0000:03:00.0", "0000:43:00.0", "0000:44:00.0"],  # the last is an Arc's audio
    "two-rtx-3090": ["0000:01:00.0", "0000:e1:00.0"],
    "virtual-machine-without-iommu": [],
}


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_all_names_the_discrete_cards_of_each_machine_and_never_the_processors_own(
    gpu_plugin: Command, copied_machine: Machine, name: str
) -> None:
    sys = copied_machine(name)
    load(sys, "vfio-pci")
    for address, function in read_host(sys).functions.items():
        if function.driver == "vfio-pci" and function.vendor_id in PREFIXES:
            bind(sys, str(address), "nouveau")
    result = gpu_plugin("bind", "--all", "--dry-run", "--sysfs", sys)
    bound = sorted(set(re.findall(r"devices/(\S+\.0)/driver_override", result.stdout)))
    assert bound == DISCRETE[name]
    assert "0000:00:02.0" not in result.stdout + result.stderr
    # Without an IOMMU there is nothing to bind for.
    assert result.returncode == (1 if name == "rtx-2060-without-iommu" else 0)


def test_a_recorded_machine_can_be_asked_too(gpu_plugin: Command, machine: Machine) -> None:
    sys = machine("rtx-2060-audio-on-snd-hda-intel")
    result = gpu_plugin("bind", GPU, "--dry-run", "--sysfs", sys)
    assert result.stdout.splitlines()[-1] == "echo 0000:01:00.1 > /sys/bus/pci/drivers_probe"
    assert result.stderr.startswith("gpu-plugin: who uses the cards was not wholly seen: ")
    result = gpu_plugin("unbind", GPU, "--dry-run", "--sysfs", sys)
    assert result.stdout.splitlines()[-1] == "echo 0000:01:00.2 > /sys/bus/pci/drivers_probe"


def test_nothing_is_written_where_it_cannot_be_seen_who_uses_the_card(
    gpu_plugin: Command, node: Node, tmp_path: Path
) -> None:
    (node.proc / "1/ns").mkdir(parents=True)
    (node.proc / "1/ns/pid").symlink_to("pid:[4026532999]")
    result = gpu_plugin("bind", GPU, "--sysfs", node.sys, "--state", tmp_path / "state")
    assert result.stderr == (
        f"gpu-plugin: who uses the cards: cannot be seen: {node.proc} shows one container's processes only; "
        "run on the node itself, or in a pod that has the node's /proc mounted\n"
    )
    assert (result.stdout, result.returncode) == ("", 1)
    assert node.drivers() == list(DAILY)


def test_as_an_init_container_it_names_what_it_skips_and_succeeds(gpu_plugin: Command, tmp_path: Path) -> None:
    node = Node(tmp_path, rtx())
    node.write(GPU, "boot_vga", "1")
    result = gpu_plugin("bind", "--all", "--sysfs", node.sys, "--state", tmp_path / "new")
    assert result.stderr.startswith(f"gpu-plugin: skipped {GPU}: it is the boot VGA")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "nothing to do\n", 0)


def test_a_card_in_use_is_one_line_and_exit_code_1(gpu_plugin: Command, node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    vfio_group(node.sys, "1")
    process(node.proc, 4711, "qemu\nkvm", "/dev/vfio/1")
    dra = ("--dra-state", node.roots.state)
    result = gpu_plugin("unbind", GPU, "--sysfs", node.sys, "--state", node.roots.state, *dra)
    assert result.stderr == (
        "gpu-plugin: cannot unbind 0000:01:00.0: it is in use: /dev/vfio/1 is open in qemu\\nkvm (pid 4711); "
        "end that first\n"
    )
    assert (result.stdout, result.returncode) == ("", 1)


KUBEVIRT = "devices.kubevirt.io/rtx"
OTHERS = "example.com/gpu"


class Given:
    """The flags that say who was given the node's devices, by its kubelet and the DRA driver's file."""

    def __init__(self, node: Node, kubelet: Kubelet, root: Path) -> None:
        self.flags: list[str | Path] = ["--sysfs", node.sys, "--state", node.roots.state]
        self.flags += ["--pod-resources", kubelet.pod_resources, "--dra-state", root / "dra"]
        (root / "dra").mkdir()
        self.checkpoint = Checkpoint(root / "dra", boot_id(node.proc))

    def claim(self, device_id: str) -> None:
        self.checkpoint.write({"1": Prepared("vms", "gpu", True, (PreparedDevice("gpu", "pci", device_id),))})


@pytest.fixture
def given(node: Node, kubelet: Kubelet, tmp_path: Path) -> Given:
    return Given(node, kubelet, tmp_path)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("resource", "device_id"),
    [("nvidia.com/TU106_GEFORCE_RTX_2060_REV__A", GPU), (OTHERS, "0000:01:00.1"), (KUBEVIRT, "1")],
)
def test_a_card_that_a_pod_was_given_is_not_given_back_though_no_process_has_it_open(
    gpu_plugin: Command, node: Node, kubelet: Kubelet, given: Given, resource: str, device_id: str, dry_run: bool
) -> None:
    node.carry_out(node.to_bind(GPU))
    kubelet.give("vms/vm-a", resource, [device_id])
    result = gpu_plugin("unbind", GPU, *given.flags, *["--dry-run"][: int(dry_run)])
    assert result.stderr == f"gpu-plugin: cannot unbind {GPU}: it is in use: given to pod vms/vm-a; end that first\n"
    assert (result.stdout, result.returncode) == ("", 1)
    kubelet.free("vms/vm-a")
    assert gpu_plugin("unbind", GPU, *given.flags, "--dry-run").returncode == 0


def test_a_card_that_a_claim_has_is_neither_given_back_nor_bound(gpu_plugin: Command, node: Node, given: Given) -> None:
    given.claim(GPU)
    words = f"{GPU}: it is in use: given to ResourceClaim vms/gpu; end that first\n"
    assert gpu_plugin("bind", GPU, *given.flags).stderr == f"gpu-plugin: cannot bind {words}"
    # As an init container: the node's other cards are served.
    result = gpu_plugin("bind", "--all", *given.flags)
    assert (result.stderr, result.returncode) == (f"gpu-plugin: skipped {words}", 0)
    node.carry_out(node.to_bind(GPU))
    assert gpu_plugin("unbind", "--all", *given.flags).stderr == f"gpu-plugin: cannot unbind {words}"


def test_another_trees_cards_are_not_given_back_before_it_is_said_where_its_claims_are(
    gpu_plugin: Command, node: Node, given: Given
) -> None:
    node.carry_out(node.to_bind(GPU))
    given.claim(GPU)
    result = gpu_plugin("unbind", GPU, "--sysfs", node.sys, "--state", node.roots.state)
    assert result.stderr == (
        f"gpu-plugin: --sysfs {node.sys}: is there without --dra-state: a card of a claim would be taken away; "
        "name where the DRA driver of that node keeps its claims\n"
    )
    assert (node.drivers(), result.returncode) == (["vfio-pci"] * 4, 2)


def test_of_a_number_that_may_be_anything_nobody_is_told_to_end_a_pod(
    gpu_plugin: Command, node: Node, kubelet: Kubelet, given: Given
) -> None:
    node.carry_out(node.to_bind(GPU))
    kubelet.tells_ids = False
    kubelet.give("ml/a", OTHERS, ["1"])
    assert gpu_plugin("unbind", GPU, *given.flags).stderr == (
        f"gpu-plugin: cannot unbind {GPU}: it is in use: given to pod ml/a, perhaps; wait until that has ended\n"
    )


def test_a_pod_of_another_plugin_keeps_its_card_from_vfio_and_one_of_ours_needs_it_there(
    gpu_plugin: Command, node: Node, kubelet: Kubelet, given: Given
) -> None:
    flags = ("bind", "--all", "--dry-run", *given.flags, "--pci-ids", FIXTURES / "pci.ids")
    kubelet.give("ml/a", OTHERS, [GPU])
    result = gpu_plugin(*flags)
    assert result.stderr == f"gpu-plugin: skipped {GPU}: it is in use: given to pod ml/a; end that first\n"
    assert (result.stdout, result.returncode) == ("", 0)
    kubelet.free("ml/a")
    # From before a boot, after which the kubelet lists it until the plugin offers its device again.
    kubelet.give("vms/before", "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A", [GPU])
    result = gpu_plugin(*flags)
    assert (result.stdout, result.stderr) == ("".join(f"{line}\n" for line in BOUND), "")


def test_a_kubelet_that_does_not_answer_keeps_no_node_from_binding_but_keeps_its_cards(
    gpu_plugin: Command, node: Node, kubelet: Kubelet, given: Given
) -> None:
    kubelet.stop()
    (given.checkpoint.directory / "checkpoint.json").write_text("x")
    result = gpu_plugin("bind", "--all", "--dry-run", *given.flags)
    pods, claims = result.stderr.splitlines()
    assert pods.startswith(f"gpu-plugin: which pods have what is not known: {kubelet.pod_resources}: ")
    assert claims.startswith(f"gpu-plugin: which claims have what is not known: {given.checkpoint.directory}")
    assert (result.stdout, result.returncode) == ("".join(f"{line}\n" for line in BOUND), 0)
    node.carry_out(node.to_bind(GPU))
    for _ in range(2):
        result = gpu_plugin("unbind", "--all", *given.flags)
        assert (result.stdout, result.returncode) == ("", 1)
        kubelet.start()  # the file alone keeps the card, too
    assert result.stderr.startswith(f"gpu-plugin: {given.checkpoint.directory}/checkpoint.json: ")
    kubelet.stop()


def test_a_write_that_the_kernel_refuses_is_named(gpu_plugin: Command, node: Node) -> None:
    # Files in a directory are no kernel: nobody unbinds.
    result = gpu_plugin("bind", GPU, "--sysfs", node.sys, "--state", node.roots.state)
    assert result.stderr.startswith(f"gpu-plugin: {BOUND[1]}: No such file or directory, and ")
    assert (result.stdout, result.returncode) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "ADDRESS and --all: are both missing; expected one: any function of each card, or all on offer"),
        ([GPU, "--all"], "ADDRESS and --all: are both there; expected one"),
        (["01:00"], "ADDRESS: '0000:01:00' is not a PCI address; expected domain:bus:slot.function"),
        (["--all", "--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["bind", "unbind"])
def test_what_is_asked_for_has_to_make_sense(
    gpu_plugin: Command, command: str, arguments: list[str], problem: str
) -> None:
    result = gpu_plugin(command, *arguments, "--dry-run")
    assert result.stderr.startswith(f"gpu-plugin: {problem}")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", 2)


def nvidia(tmp_path: Path, script: str) -> tuple[Node, tuple[str | Path, ...]]:
    """A node whose card the nvidia driver has, with a Fabric Manager; and the flags of bind there."""
    node = Node(tmp_path, rtx("nvidia", "snd_hda_intel", "xhci_hcd", "nvidia-gpu"))
    config, program = tmp_path / "config.yaml", tmp_path / "nvidia-smi"
    config.write_text("fabric: {}\n")
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    flags = ("--sysfs", node.sys, "--state", node.roots.state, "--config", config, "--nvidia-smi", program)
    return node, flags


def test_module_ids_are_kept_before_the_driver_lets_go(gpu_plugin: Command, tmp_path: Path) -> None:
    says = "[ $1 = -q ] && printf 'GPU 00000000:01:00.0\\n    Module ID : 5\\n'"
    node, flags = nvidia(tmp_path, says)
    result = gpu_plugin("bind", GPU, *flags)
    # Files in a directory are no kernel: the first write to a driver fails.
    assert "No such file or directory" in result.stderr
    assert json.loads((node.roots.state / "module-ids.json").read_text()) == {GPU: 5}


def test_nvidia_smi_may_be_in_another_root(gpu_plugin: Command, tmp_path: Path) -> None:
    """As components/module-ids says it, but for the root: `chroot /host/driver nvidia-smi`."""
    node, flags = nvidia(tmp_path, "[ $1 = -q ] && printf 'GPU 00000000:01:00.0\\n    Module ID : 5\\n'")
    gpu_plugin("bind", GPU, *flags[:-1], f"chroot / '{flags[-1]}'")
    assert json.loads((node.roots.state / "module-ids.json").read_text()) == {GPU: 5}


def test_a_command_that_is_none_is_a_usage_error(gpu_plugin: Command, tmp_path: Path) -> None:
    _, flags = nvidia(tmp_path, "exit 9")
    result = gpu_plugin("bind", GPU, *flags[:-1], "chroot / 'nvidia-smi")
    assert result.stderr == (
        "gpu-plugin: --nvidia-smi chroot / 'nvidia-smi: is no command: No closing quotation; close the quote\n"
    )
    assert result.returncode == 2


def test_a_dry_run_asks_no_driver(gpu_plugin: Command, tmp_path: Path) -> None:
    _, flags = nvidia(tmp_path, "touch $0.asked")
    assert gpu_plugin("bind", GPU, "--dry-run", *flags).returncode == 0
    assert not (tmp_path / "nvidia-smi.asked").exists()


def test_cards_whose_module_ids_nobody_tells_are_bound_with_a_warning(gpu_plugin: Command, tmp_path: Path) -> None:
    node, flags = nvidia(tmp_path, "exit 9")
    result = gpu_plugin("bind", GPU, *flags)
    assert result.stderr.startswith(
        f"gpu-plugin: module IDs are not known, and those cards go only to guests of one GPU: {tmp_path}/nvidia-smi: "
        "prints no module IDs; name the driver's nvidia-smi with --nvidia-smi"
    )
    assert not (node.roots.state / "module-ids.json").exists()
