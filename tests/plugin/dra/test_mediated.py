"""vGPUs that are mediated devices and made when they are claimed, as before Linux 6.8: on a card with virtual functions
and on an older one without, which behave as NVIDIA's: tests.vgpu_kernel."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pci.device_metadata import IN_CONTAINER, documents
from pci.sysfs.functions import MDEV_TYPES, MDEVS, read_host
from plugin.cards.claimable import claimable_cards
from plugin.cards.config import Config, Rule, Serve
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.cards.vgpu_types import plain, size_of
from plugin.device_classes import device_classes
from plugin.dra.slices import claimable
from plugin.node.snapshot import Snapshot
from plugin.permitted_host_devices import permitted_host_devices
from program.errors import Refusal
from tests.conftest import Command
from tests.plugin.counters import fitting
from tests.plugin.dra.cluster import wait_until
from tests.plugin.dra.inside import Inside, inside, reference
from tests.plugin.dra.test_vgpus import KILLS, Node, followed_after_a_kill, node_with, published
from tests.vgpu_kernel import Card, Kernel

TYPES = {
    "nvidia-588": ("NVIDIA A10-4Q", 4),
    "nvidia-590": ("NVIDIA A10-8Q", 8),
    "nvidia-591": ("NVIDIA A10-8A", 8),
    "nvidia-592": ("NVIDIA A10-24Q", 24),
}
A10 = Card(bus=0x41, id="10de:2236", memory=24, mdevs=TYPES)
#: As the Turing cards: no virtual functions, all mediated devices on the card itself.
OLDER = Card(bus=0x41, id="10de:1eb8", possible=0, memory=24, mdevs=TYPES)
CARDS = pytest.mark.parametrize("card", [A10, OLDER], ids=["by virtual function", "by card"])

MOST = {"A10-4Q": 6, "A10-8Q": 3, "A10-8A": 3, "A10-24Q": 1}
CONFIG = Config(serve=Serve.DRA, vgpus=(VGPURule(vendor="10de", types=MOST, when=When.CLAIMED),))
THIRD, WHOLE = "vgpu-0000-41-00-0-a10-8q-{}", "vgpu-0000-41-00-0-a10-24q-0"
THEIRS = "7d1d1f7e-0f1c-4b8e-9c55-0d7b7a0f6a01"


@pytest.fixture(params=[A10, OLDER], ids=["by virtual function", "by card"])
def node(short_dir: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    yield from node_with(short_dir, request.param)


class Scheduler:
    """What Kubernetes allocates of a node's card, by the devices and counters that the plugin publishes; `claimed` are
    the UUIDs of those that claims have, by the device's name."""

    def __init__(self, kernel: Kernel, config: Config, pci_ids: PCIIDs) -> None:
        self.kernel, self.config, self.pci_ids = kernel, config, pci_ids
        self.claimed: dict[str, str] = {}

    def first_that_fit(self) -> dict[str, str]:
        """The devices that it would allocate next, by the names of their types."""
        host = read_host(self.kernel.sys)
        (card,) = claimable_cards(host, self.config, self.pci_ids)
        snapshot = Snapshot(
            config=self.config,
            host=host,
            inventory=take_inventory(host, self.config, self.pci_ids),
            claimable=(card,),
            claimable_names={uuid: name for name, uuid in self.claimed.items()},
        )
        devices, sets = claimable(snapshot, card, "node")
        left = {(each["name"], name): int(value["value"]) for each in sets for name, value in each["counters"].items()}
        consumed = {
            device["name"]: {
                (each["counterSet"], name): int(value["value"])
                for each in device["consumesCounters"]
                for name, value in each["counters"].items()
            }
            for device in devices
        }
        types = {vgpu.name: vgpu.type for vgpu in card.vgpus}
        # The first of a type is the last that is put there.
        return {types[name]: name for name in reversed(fitting(left, consumed, self.claimed))}


def test_vgpus_of_a_team_have_its_taint(tmp_path: Path, pci_ids: PCIIDs) -> None:
    kernel = Kernel(tmp_path, OLDER)
    rule = Rule(mdev_type="NVIDIA A10-8Q", prefix="nvidia.com", team="ml")
    config = replace(CONFIG, offer=(rule,))
    host = read_host(kernel.sys)
    (card,) = claimable_cards(host, config, pci_ids)
    devices, _ = claimable(
        Snapshot(config=config, host=host, inventory=take_inventory(host, config, pci_ids)), card, "n"
    )
    of_team = {device["name"] for device in devices if device.get("taints", [{}])[0].get("value") == "ml"}
    assert of_team == {THIRD.format(number) for number in range(3)}


@settings(max_examples=20, deadline=None)
@given(data=some.data())
@CARDS
def test_what_the_counters_leave_is_what_the_card_can_make(card: Card, data: some.DataObject, pci_ids: PCIIDs) -> None:
    mixed = card.possible > 0 and data.draw(some.booleans())
    types = data.draw(some.lists(some.sampled_from(sorted(MOST)), min_size=1, unique=True))
    rule = VGPURule(vendor="10de", types={name: MOST[name] for name in types}, mixed_sizes=mixed, when=When.CLAIMED)
    directories = {plain(name): directory for directory, (name, _) in TYPES.items()}
    with TemporaryDirectory() as root:
        kernel = Kernel(Path(root), card)
        parents = [card.address]
        if card.possible:
            kernel.on(card)
            parents = card.functions
        if mixed:
            kernel.nvidia_smi(["vgpu", "-shm", "1", "-i", card.address])
        scheduler = Scheduler(kernel, Config(serve=Serve.DRA, vgpus=(rule,)), pci_ids)
        theirs: list[str] = []
        for step in range(data.draw(some.integers(1, 12))):
            can = {name for name in MOST if kernel.can_have(card).get(directories[name])}
            first_that_fit = scheduler.first_that_fit()
            assert first_that_fit.keys() == can & set(types), kernel.types(card)
            if scheduler.claimed and data.draw(some.integers(0, 2)) == 0:
                gone = data.draw(some.sampled_from(sorted(scheduler.claimed)))
                kernel.remove_mdev(scheduler.claimed.pop(gone))
            elif theirs and data.draw(some.integers(0, 2)) == 0:
                kernel.remove_mdev(theirs.pop())
            elif can:
                by_others = data.draw(some.integers(0, 3)) == 0
                if not (fits := sorted(can if by_others else can & set(types))):
                    continue
                name, uuid = data.draw(some.sampled_from(fits)), str(UUID(int=step))
                if by_others:
                    theirs.append(uuid)
                else:
                    scheduler.claimed[first_that_fit[name]] = uuid
                place = next(one for one in parents if int(_available(kernel, one, directories[name]).read_text()))
                kernel.create(place, directories[name], uuid)
        assert all(size_of(plain(name)) for name in kernel.types(card).values())


def _available(kernel: Kernel, parent: str, directory: str) -> Path:
    return kernel.sys / "bus/pci/devices" / parent / MDEV_TYPES / directory / "available_instances"


def test_they_are_published_by_the_card_and_permitted_to_kubevirt(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await published(driver)
        its = node.cluster.published()[THIRD.format(1)]
        known = {name: next(iter(each.values())) for name, each in its["attributes"].items()}
        assert {name: known.get(name) for name in ("type", "parent", "resource", "mdevUUID", "uuid")} == {
            "type": "mdev",
            "parent": "0000:41:00.0",
            "resource": "nvidia.com/NVIDIA_A10-8Q",
            "mdevUUID": None,
            "uuid": None,
        }
        assert its["capacity"] == {"memory": {"value": "8Gi"}}
        snapshot = driver.watch.snapshot
        assert "a10-8q" in str(device_classes(snapshot.inventory, snapshot.claimable))
        stanza = permitted_host_devices(snapshot.inventory, snapshot.claimable)["permittedHostDevices"]
        assert {
            "mdevNameSelector": "NVIDIA A10-8Q",
            "resourceName": "nvidia.com/NVIDIA_A10-8Q",
            "externalResourceProvider": True,
        } in stanza["mediatedDevices"]

    inside(node.cluster, pci_ids, life, CONFIG)


def test_a_claims_mediated_device_is_made_told_and_taken_away(
    node: Node, pci_ids: PCIIDs, gpu_launcher: Command
) -> None:
    async def life(driver: Inside) -> None:
        await published(driver)
        claims = node.claims(driver)
        of_a_resource = {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}
        both = node.cluster.claim(THIRD.format(0)), node.cluster.claim(THIRD.format(2), metadata=of_a_resource)
        made = [device for claim in both for device in await claims.prepare(reference(claim))]
        uuids = [UUID(device.id) for device in made]
        assert (node.types, node.ours()) == (["A10-8Q"] * 2, sorted(map(str, uuids)))
        host = driver.watch.snapshot.host
        edits = [
            specification["devices"][0]["containerEdits"]
            for claim in both
            for specification in [node.cluster.specifications()[claim["metadata"]["uid"]]]
        ]
        groups = {mdev.uuid: mdev.iommu_group for mdev in host.mdevs}
        for uuid, edit in zip(uuids, edits, strict=True):
            assert [each["path"] for each in edit["deviceNodes"]] == ["/dev/vfio/vfio", f"/dev/vfio/{groups[uuid]}"]
        (mount,) = edits[0]["mounts"]
        (told,) = next(documents(Path(mount["hostPath"]).read_text()))["requests"][0]["devices"]
        assert told["attributes"]["mdevUUID"] == told["attributes"]["uuid"] == {"string": str(uuids[0])}
        assert told["attributes"]["parent"] == {"string": "0000:41:00.0"}
        (variable,) = edits[1]["env"]
        assert variable == f"MDEV_PCI_RESOURCE_NVIDIA_COM_NVIDIA_A10-8Q={uuids[1]}"
        # And on to the domain: by the file of the claim, and by the variable.
        pod = node.cluster.directory / "pod"
        file = pod / Path(mount["containerPath"]).relative_to(IN_CONTAINER)
        file.parent.mkdir(parents=True)
        file.write_bytes(Path(mount["hostPath"]).read_bytes())
        vm = node.cluster.directory / "vm.yaml"
        vm.write_text(VM.format(claim=both[0]["metadata"]["name"]))
        rendered = gpu_launcher("render", vm, "--dra", pod, "--env", variable, "--sysfs", node.kernel.sys)
        assert rendered.returncode == 0, rendered.stderr
        assert [rendered.stdout.count(f'uuid="{uuid}"') for uuid in uuids] == [1, 1]
        # The kubelet asks again; the card is full for other sizes; and all of it ends.
        writes = len(node.kernel.log)
        assert [device for claim in both for device in await claims.prepare(reference(claim))] == made
        with pytest.raises(Refusal, match=r"can become no further vGPU of type A10-24Q; it can become A10-8A, A10-8Q"):
            await claims.prepare(reference(node.cluster.claim(WHOLE)))
        assert len(node.kernel.log) == writes
        for claim in (*both, *both):
            await claims.unprepare(reference(claim))
        assert node.is_as_before()
        await claims.prepare(reference(node.cluster.claim(WHOLE)))
        assert node.types == ["A10-24Q"]

    inside(node.cluster, pci_ids, life, CONFIG)
    assert (node.kernel.wrongs, node.kernel.refused) == ([], [])


VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: vm}}
spec:
  domain:
    memory: {{guest: 1Gi}}
    devices:
      gpus:
      - {{name: claimed, claimName: gpus, requestName: gpu-0}}
      - {{name: named, deviceName: nvidia.com/NVIDIA_A10-8Q}}
  resourceClaims:
  - {{name: gpus, resourceClaimName: {claim}}}
"""


@KILLS
def test_after_a_kill_at_each_write_the_next_driver_goes_on_or_takes_back(
    node: Node, pci_ids: PCIIDs, at: int, then: str
) -> None:
    followed_after_a_kill(node, pci_ids, CONFIG, THIRD.format(0), "A10-8Q", at, then)


def test_a_guests_and_others_mediated_devices_are_left_and_what_nobody_has_goes(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        parent = node.card.function(8) if node.card.possible else node.card.address
        node.kernel.create(parent, "nvidia-590", THEIRS)
        node.kernel.foreign.add(THEIRS)
        await driver.watch.look_again()
        claims, claim = node.claims(driver), reference(node.cluster.claim(THIRD.format(0)))
        (device,) = await claims.prepare(claim)
        node.kernel.guests[device.id] = "qemu-system-x86 (pid 4711)"
        with pytest.raises(Refusal, match=r"is in use by qemu-system-x86 \(pid 4711\)"):
            await claims.unprepare(claim)
        trouble = driver.watch.snapshot.reason(driver.watch.snapshot.inventory.by_id[device.id])
        assert trouble is not None
        assert "was not taken away" in trouble.wrong
        node.kernel.guests.clear()
        (node.cluster.state / "checkpoint.json").unlink()  # so no claim has it
        await node.claims(driver).reconcile()
        assert (node.types, node.ours()) == (["A10-8Q"], [])
        # KubeVirt's virt-handler removes what its CR does not name.
        claims, claim = node.claims(driver), reference(node.cluster.claim(THIRD.format(1)))
        (device,) = await claims.prepare(claim)
        node.kernel.remove_mdev(device.id)
        await driver.watch.look_again()
        await claims.unprepare(claim)
        assert node.ours() == []

    inside(node.cluster, pci_ids, life, CONFIG)
    assert set(node.kernel.types(node.card)) == {THEIRS}
    assert node.kernel.wrongs == []


def test_a_uuid_that_somebody_else_has_taken_is_not_taken_over(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        claims, claim = node.claims(driver), reference(node.cluster.claim(THIRD.format(0)))
        (device,) = await claims.prepare(claim)
        await claims.unprepare(claim)
        parent = node.card.function(8) if node.card.possible else node.card.address
        node.kernel.create(parent, "nvidia-590", device.id)
        node.kernel.foreign.add(device.id)
        with pytest.raises(Refusal, match=f"{device.id}: is there already, of type A10-8Q"):
            await claims.prepare(claim)
        assert node.ours() == []

    inside(node.cluster, pci_ids, life, CONFIG)
    assert node.kernel.wrongs == []


# As processes.


@contextmanager
def reacting(kernel: Kernel) -> Iterator[None]:
    """Do what the driver's processes write to `create` and `remove`."""
    ended = threading.Event()

    def react() -> None:
        while not ended.wait(0.02):
            for file in (kernel.sys / "devices").rglob("create"):
                if uuid := file.read_text().strip():
                    file.write_text("")
                    kernel.create(file.parent.parent.parent.name, file.parent.name, uuid)
            for file in (kernel.sys / MDEVS).glob("*/remove"):
                if file.read_text():
                    kernel.remove_mdev(file.parent.name)
            for group in (kernel.sys / "class/vfio").glob("*"):
                (kernel.sys.parent / "dev/vfio" / group.name).touch()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(react)
        try:
            yield
        finally:
            ended.set()
            done.result()


def test_the_driver_itself_makes_and_removes_them_and_a_killed_one_is_followed(node: Node) -> None:
    def answer(claim: dict[str, Any]) -> str:
        (prepared,) = node.cluster.kubelet.prepare(claim).values()
        return prepared.error

    state = ("--state", node.cluster.directory / "former")
    config = 'serve: dra\nvgpus: [{vendor: "10de", types: {A10-8Q: 3, A10-24Q: 1}, when: claimed}]\n'
    with reacting(node.kernel):
        with node.cluster.driver(config, *state) as plugin:
            node.cluster.wait_for(THIRD.format(0), THIRD.format(1), THIRD.format(2), WHOLE)
            claim = node.cluster.claim(THIRD.format(1))
            assert answer(claim) == ""
            assert (node.types, node.ours()) == (["A10-8Q"], list(node.kernel.types(node.card)))
            plugin.kill()
        with node.cluster.driver(config, *state):
            node.cluster.wait_for(THIRD.format(0), THIRD.format(1), THIRD.format(2), WHOLE)
            wait_until(lambda: THIRD.format(1) in node.cluster.kubelet.health())
            assert answer(claim) == ""
            assert node.types == ["A10-8Q"]
            assert set(node.cluster.kubelet.unprepare(claim).values()) == {""}
            assert node.is_as_before()
