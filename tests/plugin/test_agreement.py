"""The daemon, inventory, doctor, picture, page and metrics say the same of every device: they have one look."""

import asyncio
import html
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plugin.cards.config import Config
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule
from plugin.changes.users import Assignment, KubeletList
from plugin.commands import doctor, inventory
from plugin.commands.node import NodeFlags, node_now
from plugin.config_file import read_config
from plugin.device_plugin.daemon import _partitions
from plugin.device_plugin.monitoring import _Collector
from plugin.doctor import examine
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice, claimed
from plugin.dra.slices import device_of
from plugin.fabric.activations import Owners, owners_file
from plugin.node.snapshot import DeviceState, Snapshot
from plugin.pages.page import node_page
from plugin.pages.picture import picture
from plugin.watch.watch import Sources, Watch
from program.errors import ProgramError
from program.problem import Problem
from tests.breaking import Break, breaks, broken
from tests.compose import SYSFS, look_closely
from tests.conftest import Command, Machine
from tests.kernel import bind, load, make_nodes, part, process, vfio_group
from tests.kubelet import Kubelet, running_kubelet
from tests.pages import devices_on
from tests.pictures import read_back, squeezed
from tests.plugin.cards.test_broken_sysfs import breakable, write_machine
from tests.plugin.kinds import cut as vgpu_node
from tests.plugin.reader import new_reader
from tests.processes import FIXTURES, ROOT
from tests.vgpu_kernel import Card

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CONFIGS = ("{}", "serve: dra\nbind: when-claimed\n", "groups: together\n")
PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")
GPU, SCREEN = "0000:01:00.0", "0000:00:02.0"
ZERO = "1:5\n"  # the number of /dev/zero


@dataclass(frozen=True)
class Node:
    """A machine that is a directory, its /dev and /proc, its state, and the config as a file."""

    sys: Path
    dev: Path
    proc: Path
    state: Path
    dra_state: Path
    config: Path
    pci_ids: PCIIDs
    listed: KubeletList | None = None

    def prepare(self, device_id: str) -> None:
        """Write down that a claim has the device, as the DRA driver does."""
        prepared = Prepared("vms", "gpu", True, (PreparedDevice("gpu", "pci", device_id),))
        Checkpoint(self.dra_state, self.boot).write({"1": prepared})

    @property
    def boot(self) -> str:
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> Snapshot:
        """What a command sees."""
        flags = NodeFlags(
            sysfs=self.sys,
            proc=self.proc,
            dev=self.dev,
            config=self.config,
            state=self.state,
            dra_state=self.dra_state,
        )
        seen = node_now(flags, self.pci_ids)
        return seen if self.listed is None else seen.with_pods(self.listed)

    @property
    def flags(self) -> list[str | Path]:
        """What bind, unbind and vgpus are told of the node."""
        flags: list[str | Path] = ["--sysfs", self.sys, "--proc", self.proc, "--state", self.state]
        return [*flags, "--dra-state", self.dra_state, "--config", self.config]

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """The daemon's, which has heard of the claims."""

        async def config() -> Config:
            return read_config(self.config)

        reader = new_reader()
        sources = Sources(
            sys=self.sys,
            dev=self.dev,
            state=self.state,
            reader=reader,
            pod_resources=self.dev / "none",
            names=self.pci_ids,
            config=self.config,
            read_config=config,
            rescan=60,
        )
        with reader.listening(lambda: None, lambda: None):
            watch = await Watch.begin(sources, asyncio.Event())
            claims = claimed(Checkpoint(self.dra_state, self.boot).read())
            watch.see(replace(watch.snapshot, claimed=claims))
            if self.listed is not None:
                watch.see(watch.snapshot.with_pods(self.listed))
            await _partitions(watch, None).reconcile()
            yield watch


def assert_all_agree(node: Node) -> None:
    seen: Snapshot | ProgramError
    try:
        seen = node.now()
    except ProgramError as error:
        seen = error
    asyncio.run(_agree(node, seen))


async def _agree(node: Node, seen: Snapshot | ProgramError) -> None:
    if isinstance(seen, ProgramError):
        with pytest.raises(ProgramError, match=re.escape(str(seen))):
            await node.watch().__aenter__()
        return
    async with node.watch() as watch:
        _assert_agreed(node, seen, watch)


def in_words(reason: dict[str, str] | None) -> str | None:
    """The text of a device's reason, as pages and metrics have it."""
    return None if reason is None else str(Problem(**{**reason, "subject": ""}))


def _assert_agreed(node: Node, seen: Snapshot, watch: Watch) -> None:
    snapshot = watch.snapshot
    reasons = {
        device.id: None if (reason := snapshot.reason(device)) is None else str(reason)
        for device in snapshot.inventory.devices
    }
    claims = {device.id: snapshot.claim(device) for device in snapshot.inventory.devices}
    listed = {each["id"]: each for each in inventory._as_json(seen, node.pci_ids)["devices"]}
    assert {device_id: in_words(each["reason"]) for device_id, each in listed.items()} == reasons
    assert {device_id: each["claim"] for device_id, each in listed.items()} == claims
    examined = doctor._as_json(seen, examine(seen))["devices"]
    assert {each["id"]: in_words(each["reason"]) for each in examined} == reasons
    metrics = {metric.name: metric.samples for metric in _Collector(watch).collect()}
    told = {sample.labels["device"]: sample.labels for sample in metrics["gpu_plugin_device"]}
    assert {device_id: labels["reason"] or None for device_id, labels in told.items()} == reasons
    assert {sample.labels["device"]: _user(sample.labels) for sample in metrics["gpu_plugin_device_in_use"]} == {
        device.id: user for device in snapshot.inventory.devices if (user := snapshot.user(device)) is not None
    }
    drawn = read_back(picture(seen)).words
    shown = {each.id: each for each in devices_on(node_page(watch.snapshot).html)}
    assert {device_id: each.reason for device_id, each in shown.items()} == reasons
    assert {device_id: each.user for device_id, each in shown.items()} == {
        device.id: snapshot.user(device) for device in snapshot.inventory.devices
    }
    for device in snapshot.inventory.devices:
        state = snapshot.state(device)
        assert squeezed(f"{reasons[device.id] or ''}") in drawn
        assert squeezed(f"by ResourceClaim {claims[device.id]}" if claims[device.id] else "") in drawn
        assert squeezed(state) in drawn
        assert shown[device.id].state == state
        assert told[device.id]["state"] == (
            state if state in (DeviceState.CORDONED, DeviceState.UNHEALTHY, DeviceState.WITHHELD) else "healthy"
        )
        if device in snapshot.inventory.published:
            assert ("taints" in device_of(snapshot, device, "node")) == (reasons[device.id] is not None)


def _user(labels: Mapping[str, str]) -> str:
    pod, claim, namespace = labels["pod"], labels["claim"], labels["namespace"]
    return f"pod {namespace}/{pod}" if pod else f"ResourceClaim {namespace}/{claim}"


@pytest.fixture
def node(tmp_path: Path, pci_ids: PCIIDs) -> Callable[..., Node]:
    def of(sys: Path, config: str) -> Node:
        proc = tmp_path / "proc"
        boot = proc / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True, exist_ok=True)
        boot.write_text("0b6f3c3e-0000-4000-8000-000000000001\n")
        (tmp_path / "config.yaml").write_text(config)
        for directory in ("state", "dra"):
            (tmp_path / directory).mkdir(exist_ok=True)
        return Node(
            sys=sys,
            dev=make_nodes(sys, tmp_path / "dev"),
            proc=proc,
            state=tmp_path / "state",
            dra_state=tmp_path / "dra",
            config=tmp_path / "config.yaml",
            pci_ids=pci_ids,
        )

    return of


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_all_agree_on_every_machine(node: Callable[..., Node], machine: Machine, name: str, config: str) -> None:
    this = node(machine(name), config)
    assert_all_agree(this)
    for device in this.now().inventory.offered[:1]:
        this.prepare(device.id)
        assert_all_agree(this)


def test_all_agree_on_which_cards_wait_for_the_fabric_manager(node: Callable[..., Node], machine: Machine) -> None:
    this = node(machine("two-h100"), "serve: dra\nfabric: {}\n")
    assert_all_agree(this)
    assert all(this.now().reason(device) is None for device in this.now().inventory.offered), "it never had partitions"
    owners_file(this.state).write(Owners())
    assert_all_agree(this)
    seen = this.now()
    assert {str(seen.reason(device)).split(": ")[0] for device in seen.inventory.offered} == {
        "waits for the Fabric Manager"
    }
    assert {"partitions", "NVLinks"} <= {*seen.unknown}


def test_all_say_which_files_of_ours_cannot_be_read(node: Callable[..., Node], machine: Machine) -> None:
    this = node(machine("two-rtx-3090"), "serve: dra\nbind: when-claimed\n")
    (this.state / "nvml.json").write_text("{}x")
    (this.state / "journal.json").write_text(f'{{"boot": "{this.boot}"}}')
    seen = this.now()
    texts = list(map(str, seen.not_read))
    assert [text.split(": ")[0] for text in texts] == [f"{this.state}/nvml.json", f"{this.state}/journal.json"]
    assert [str(Problem(**each)) for each in inventory._as_json(seen, this.pci_ids)["notRead"]] == texts
    words = read_back(picture(seen)).words
    page = node_page(seen).html
    for problem in seen.not_read:
        assert squeezed(f"not read {problem}") in words
        assert html.escape(f"Not read: {problem}", quote=False) in page
    told = [finding.problem for finding in examine(seen) if finding.check == "state"]
    assert [f"{each.wrong}; {each.fix}" for each in told] == [f"not read: {text}" for text in texts]


def test_all_agree_whatever_is_broken(node: Callable[..., Node], tmp_path: Path) -> None:
    write_machine(tmp_path / "sys")
    this = node(tmp_path / "sys", "{}")
    this.prepare("0000:41:00.0")

    @settings(max_examples=60)
    @example(found=[Break("devices/pci0000:40/0000:40:01.0/0000:41:00.1/iommu_group", "missing")], config=CONFIGS[1])
    @given(found=breaks(breakable(tmp_path / "sys")), config=st.sampled_from(CONFIGS))
    def agree(found: list[Break], config: str) -> None:
        this.config.write_text(config)
        with broken(tmp_path / "sys", found):
            assert_all_agree(this)

    agree()


FOREIGN = "example.com/gpu"
POD, CLAIM, PROCESS = "pod vms/vm-a", "ResourceClaim vms/gpu", "qemu (pid 812)"


def listed(user: str, device_id: str) -> KubeletList:
    """What the kubelet lists if this user has the device."""
    pods = frozenset({Assignment("vms/vm-a", FOREIGN, device_id)}) if user == POD else frozenset()
    return KubeletList(assignments=pods)


@contextmanager
def kubelet_that_lists(listed: KubeletList | None, directory: Path) -> Iterator[tuple[str | Path, ...]]:
    """A kubelet for commands, and the flag that names it; in a process of its own, since this one forks, and gRPC has
    threads."""
    spawning = get_context("spawn")
    is_there, is_over = spawning.Event(), spawning.Event()
    process = spawning.Process(target=_be_kubelet, args=(listed or KubeletList(), directory, is_there, is_over))
    process.start()
    try:
        assert is_there.wait(60)
        yield "--pod-resources", directory / "pod-resources/kubelet.sock"
    finally:
        is_over.set()
        process.join(60)


def _be_kubelet(listed: KubeletList, directory: Path, is_there: Event, is_over: Event) -> None:
    with running_kubelet(directory) as kubelet:
        for each in listed.assignments:
            kubelet.give(each.pod, each.resource, [each.device_id])
        is_there.set()
        is_over.wait(120)


@pytest.mark.parametrize("user", [POD, CLAIM])
@pytest.mark.parametrize("serve", ["device-plugin", "dra"])
def test_all_name_one_user_of_a_card_and_bind_and_unbind_refuse_it(
    gpu_plugin: Command, node: Callable[..., Node], copied_machine: Machine, short_dir: Path, user: str, serve: str
) -> None:
    sys = copied_machine("two-rtx-3090")
    load(sys, "vfio-pci")
    this = node(sys, f"serve: {serve}\n")
    if user == CLAIM:
        this.prepare(GPU)
    this = replace(this, listed=listed(user, GPU))
    assert_all_agree(this)
    seen = this.now()
    assert {device.id: seen.user(device) for device in seen.inventory.offered}[GPU] == user
    refusal = f"{GPU}: it is in use: given to {user}; end that first\n"
    with kubelet_that_lists(this.listed, short_dir) as pods:
        assert gpu_plugin("unbind", GPU, *this.flags, *pods).stderr == f"gpu-plugin: cannot unbind {refusal}"
        for function in (GPU, GPU.replace(".0", ".1")):
            bind(sys, function, "nouveau")
        assert gpu_plugin("bind", GPU, *this.flags, *pods).stderr == f"gpu-plugin: cannot bind {refusal}"


def test_a_process_is_named_alike_by_unbind_bind_and_why_no_claim_gets_the_card(
    gpu_plugin: Command, node: Callable[..., Node], copied_machine: Machine
) -> None:
    sys = copied_machine("two-rtx-3090")
    load(sys, "vfio-pci")
    this = node(sys, "serve: dra\nbind: when-claimed\n")
    vfio_group(sys, "11")
    (sys / "class/vfio/11/dev").write_text(ZERO)
    process(this.proc, 812, "qemu", "/dev/zero")
    refusal = f"it is in use: /dev/vfio/11 is open in {PROCESS}; end that first"
    assert gpu_plugin("unbind", GPU, *this.flags).stderr == f"gpu-plugin: cannot unbind {GPU}: {refusal}\n"
    for function in (GPU, GPU.replace(".0", ".1")):
        bind(sys, function, "nouveau")
    part(sys, GPU, "drm/card0", "drm", "dri/card0", dev=ZERO)
    refusal = refusal.replace("vfio/11", "dri/card0")
    assert gpu_plugin("bind", GPU, *this.flags).stderr == f"gpu-plugin: cannot bind {GPU}: {refusal}\n"
    assert_all_agree(this)
    (reason,) = (this.now().reason(device) for device in this.now().inventory.offered if device.id == GPU)
    assert f"{reason}" == f"cannot be bound to vfio: {refusal}"


@pytest.mark.parametrize("user", [POD, CLAIM, PROCESS])
def test_all_name_one_user_of_a_mediated_device_and_vgpus_takes_it_not_away(
    gpu_plugin: Command, tmp_path: Path, pci_ids: PCIIDs, short_dir: Path, user: str
) -> None:
    card = Card(bus=0x81, id="10de:1eb8", possible=0, memory=16, mdevs={"nvidia-23": ("GRID T4-8Q", 8)})
    cut = vgpu_node.Node(tmp_path, card)
    cut.wants(VGPURule(vendor="10de", types={"T4-8Q": 1}))
    cut.apply()
    (uuid,) = cut.types(card)
    for name in ("dra", "dev"):
        (tmp_path / name).mkdir(exist_ok=True)
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    this = Node(
        sys=cut.sys,
        dev=tmp_path / "dev",
        proc=cut.proc,
        state=cut.state,
        dra_state=tmp_path / "dra",
        config=config,
        pci_ids=pci_ids,
        listed=listed(user, uuid),
    )
    if user == CLAIM:
        this.prepare(uuid)
    elif user == PROCESS:
        group = (cut.sys / "bus/mdev/devices" / uuid / "iommu_group").readlink().name
        (cut.sys / "class/vfio" / group / "dev").write_text(ZERO)
        process(cut.proc, 812, "qemu", "/dev/zero")
    assert_all_agree(this)
    if user != PROCESS:
        seen = this.now()
        assert [seen.user(device) for device in seen.inventory.devices if device.id == uuid] == [user]
    words = f"in use by {user}"
    with kubelet_that_lists(this.listed, short_dir) as pods:
        assert f"{uuid}: T4-8Q, made by gpu-plugin, {words}\n" in gpu_plugin("vgpus", *this.flags, *pods).stdout
        assert words in gpu_plugin("vgpus", "apply", "--undo", *this.flags, *pods).stderr
    assert set(cut.types(card)) == {uuid}


def test_the_boot_vga_is_bound_for_no_claim_and_everybody_says_so(
    gpu_plugin: Command, node: Callable[..., Node], copied_machine: Machine
) -> None:
    sys = copied_machine("rtx-2060")
    bind(sys, GPU, "nouveau")
    (sys / "bus/pci/devices" / GPU / "boot_vga").write_text("1\n")
    this = node(sys, "serve: dra\nbind: when-claimed\n")
    flags = ("--sysfs", sys, "--dev", this.dev, "--config", this.config, *PCI_IDS)
    (listed,) = (each for each in devices(gpu_plugin("inventory", "--json", *flags)) if each["id"] == GPU)
    (examined,) = (each for each in devices(gpu_plugin("doctor", "--json", *flags)) if each["id"] == GPU)
    assert listed["reason"] == examined["reason"]
    assert "the boot VGA" in listed["reason"]["wrong"]
    assert "devices that can be handed out: 0 of 2" in gpu_plugin("doctor", *flags).stdout


def test_nobody_advises_to_bind_the_boot_vga(gpu_plugin: Command, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices" / SCREEN / "boot_vga").write_text("1\n")
    flags = ("--sysfs", sys, *PCI_IDS)
    refusal = gpu_plugin("bind", SCREEN, "--dry-run", "--sysfs", sys).stderr
    fix = "let the firmware put that on another card (its setup calls it primary display)"
    assert fix in refusal
    (listed,) = (each for each in devices(gpu_plugin("inventory", "--json", *flags)) if each["id"] == SCREEN)
    wrong = "is the boot VGA, the node's own screen, and bound to i915"
    assert listed["reason"] == {"subject": SCREEN, "wrong": wrong, "fix": fix}
    (finding,) = (
        each
        for each in json.loads(gpu_plugin("doctor", "--json", *flags).stdout)["findings"]
        if each["device"] == SCREEN
    )
    assert (finding["subject"], finding["wrong"]) == (SCREEN, wrong)
    assert finding["fix"] == f"if a guest is to have it: {fix}"


def test_a_card_off_the_bus_is_unhealthy_for_a_command_too(
    gpu_plugin: Command, copied_machine: Machine, kubelet: Kubelet
) -> None:
    sys = copied_machine("two-rtx-3090")
    look_closely(sys, GPU, power_state="D0")
    (sys / "bus/pci/devices" / GPU / "config").write_bytes(b"\xff" * 64)
    flags = ("--json", "--sysfs", sys, "--pod-resources", kubelet.pod_resources, *PCI_IDS)
    assert [each["healthy"] for each in devices(gpu_plugin("inventory", *flags))] == [False, True]
    assert devices(gpu_plugin("doctor", *flags))[0]["reason"]["wrong"].startswith("fell off the bus: ")
    # A guest that resets its card reads alike.
    kubelet.pods["vms/one"] = {"nvidia.com/GA102_GEFORCE_RTX_3090": {GPU}}
    assert [each["healthy"] for each in devices(gpu_plugin("inventory", *flags))] == [True, True]


def test_a_command_that_forks_to_read_sysfs_asks_the_kubelet_in_another_process(kubelet: Kubelet) -> None:
    """A fork beside grpc's threads may end before it has read anything (grpc/grpc#43055)."""
    program = (
        "import sys; from pathlib import Path\n"
        "from plugin.cards.names import read_pci_ids; from plugin.commands.node import NodeFlags, node_now\n"
        "flags = NodeFlags(sysfs=Path(sys.argv[1]), pod_resources=Path(sys.argv[2]))\n"
        "assert node_now(flags, read_pci_ids(Path(sys.argv[3]))).assignments is not None\n"
        "assert 'grpc' not in sys.modules"
    )
    paths = (SYSFS / "two-rtx-3090", kubelet.pod_resources, FIXTURES / "pci.ids")
    subprocess.run([sys.executable, "-c", program, *paths], cwd=ROOT, check=True)


def devices(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", json.loads(result.stdout)["devices"])
