"""Rounds of whatever may happen to a driver, in an order that a seed decides: a scheduler that errs, crashes, a second
plugin, an API server that goes, cards that break. After each, what must hold holds."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from tests.conftest import Machine
from tests.faults import Life
from tests.kernel import answering, bind, make_nodes
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster, wait_until

if TYPE_CHECKING:
    from tests.processes import Program

_SEEDS = (19, 2026)
_ROUNDS, _THOROUGH_ROUNDS = 25, 2500  # of each seed
_BINDING_ROUNDS, _THOROUGH_BINDING_ROUNDS = 20, 500  # each binds with a process of its own
_BACK_WITHIN = 10.0  # seconds for the slices to be as the node is

#: What happens, and how often.
_HAPPENS = {
    "allocate": 20,
    "allocate_twice": 5,
    "prepare": 30,
    "unprepare": 20,
    "unprepare_unknown": 2,
    "kubelet_restarts": 4,
    "crash": 2,
    "another_plugin": 2,
    "api_goes_or_comes": 5,
    "card_breaks_or_mends": 6,
    "slice_is_touched": 4,
}


class ClusterLife(Life):
    """The cluster, and what ought to be there: claims, those that are prepared, cards that are broken."""

    flags: tuple[str | Path, ...] = ("--rescan", "60")
    config = "serve: dra\n"

    def __init__(self, cluster: Cluster, plugins: contextlib.ExitStack, seed: int) -> None:
        self.cluster = cluster
        super().__init__(seed, _HAPPENS)
        self.claims: dict[str, dict[str, Any]] = {}
        self.prepared: set[str] = set()
        self.broken: dict[str, Path] = {}  # by device: what is missing, or in the way
        self.api_is_there = True
        self.slowest = 0.0  # seconds until the slices were as the node was
        self.number = 0
        self._stack = plugins
        self._plugins: list[Program] = []
        self.start()
        wait_until(lambda: len(cluster.published()) == 8)
        self.groups = {name: str(each["attributes"]["iommuGroup"]["int"]) for name, each in cluster.published().items()}

    def start(self) -> None:
        self._plugins.append(self._stack.enter_context(self.cluster.driver(self.config, *self.flags)))

    def devices(self, name: str) -> list[str]:
        return [each["device"] for each in self.claims[name]["status"]["allocation"]["devices"]["results"]]

    def free(self) -> list[str]:
        taken = {device for name in self.claims for device in self.devices(name)}
        return sorted(self.groups.keys() - taken)

    def some_claim(self) -> str | None:
        return self.chance.choice(sorted(self.claims)) if self.claims else None

    # What happens.

    def allocate(self) -> None:
        if free := self.free():
            self._claim(self.chance.sample(free, self.chance.randint(1, min(2, len(free)))))

    def allocate_twice(self) -> None:
        self._claim([self.chance.choice(sorted(self.groups))])

    def _claim(self, devices: list[str]) -> None:
        self.number += 1
        name = f"claim-{self.number}"
        self.claims[name] = self.cluster.claim(*devices, name=name)

    def prepare(self) -> None:
        name = self.some_claim()
        if name is None:
            return
        (answer,) = self.cluster.kubelet.prepare(self.claims[name]).values()
        others = {device for other in self.prepared - {name} for device in self.devices(other)}
        ours = self.devices(name)
        may = name in self.prepared or (
            self.api_is_there and not others & set(ours) and not self.broken.keys() & set(ours)
        )
        assert (answer.error == "") is may, (name, ours, answer.error)
        if may:
            assert sorted(device.device_name for device in answer.devices) == sorted(ours)
            self.prepared.add(name)

    def unprepare(self) -> None:
        name = self.some_claim()
        if name is None:
            return
        assert set(self.cluster.kubelet.unprepare(self.claims[name]).values()) == {""}
        self.prepared.discard(name)
        self.cluster.delete(self.claims.pop(name))

    def unprepare_unknown(self) -> None:
        claim = {"metadata": {"namespace": "vms", "name": "nobodys", "uid": f"0b6f-{self.chance.randrange(1 << 30)}"}}
        assert set(self.cluster.kubelet.unprepare(claim).values()) == {""}

    def kubelet_restarts(self) -> None:
        """It prepares again what its pods have."""
        claims = [self.claims[name] for name in sorted(self.prepared)]
        if claims:
            assert {answer.error for answer in self.cluster.kubelet.prepare(*claims).values()} == {""}

    def crash(self) -> None:
        self._plugins.pop(self.chance.randrange(len(self._plugins))).kill()
        if not self._plugins:
            self.start()

    def another_plugin(self) -> None:
        """As in a rolling update: the new one is there before the old one ends."""
        if len(self._plugins) == 1:
            self.start()
            wait_until(lambda: len(list(self.cluster.kubelet.registry.glob("*dra*.sock"))) >= 2)
        else:
            self._plugins.pop(0).kill()

    def api_goes_or_comes(self) -> None:
        if self.api_is_there:
            self.cluster.api.stop()
        else:
            self.cluster.api.start()
        self.api_is_there = not self.api_is_there

    def card_breaks_or_mends(self) -> None:
        if self.broken and self.chance.random() < 0.6:
            self.broken.pop(self.chance.choice(sorted(self.broken))).touch()
            return
        name = self.chance.choice(sorted(self.groups))
        if name not in self.broken:
            node = self.cluster.directory / "dev/vfio" / self.groups[name]
            node.unlink()
            self.broken[name] = node

    def slice_is_touched(self) -> None:
        if not self.api_is_there:
            return
        for each in self.cluster.api.slices(NODE):
            path = f"/apis/resource.k8s.io/v1/resourceslices/{each['metadata']['name']}"
            if self.chance.random() < 0.5:
                self.cluster.api.remove(path)
            else:
                each["spec"]["devices"] = each["spec"]["devices"][:3]
                self.cluster.api.put(path, each)

    # What must hold.

    def check(self) -> None:
        uids = {self.claims[name]["metadata"]["uid"] for name in self.prepared}
        checkpoint = self.cluster.checkpoint()
        assert {uid for uid, entry in checkpoint.items() if entry["completed"]} == uids
        given = [device["id"] for entry in checkpoint.values() for device in entry["devices"]]
        assert len(given) == len(set(given)), "a card is in two claims"
        specifications = self.cluster.specifications()
        assert set(specifications) == uids, "a specification is an orphan, or missing"
        groups = [
            node["path"]
            for specification in specifications.values()
            for device in specification["devices"]
            for node in device["containerEdits"]["deviceNodes"]
            if node["path"] != "/dev/vfio/vfio"
        ]
        assert len(groups) == len(set(groups)), "a group is in two containers"
        if self.api_is_there:
            self.check_slices()

    def check_slices(self) -> None:
        healthy = self.groups.keys() - self.broken.keys()

        def are_right() -> bool:
            published = self.cluster.published()
            return published.keys() == self.groups.keys() and healthy == {
                name for name, each in published.items() if "taints" not in each
            }

        began = time.monotonic()
        wait_until(are_right)
        self.slowest = max(self.slowest, time.monotonic() - began)


class BindingLife(ClusterLife):
    """The same where cards are with their host's driver until a claim has them; one may become the node's screen."""

    config = "serve: dra\nbind: when-claimed\n"

    def start(self) -> None:
        self.flags = ("--rescan", "0.5", "--state", self.cluster.directory / "former")
        super().start()

    def card_breaks_or_mends(self) -> None:
        if self.broken and self.chance.random() < 0.6:
            self.broken.pop(self.chance.choice(sorted(self.broken))).unlink()
            return
        name = self.chance.choice(sorted(self.groups.keys() - self.bound()))
        if name not in self.broken:
            self.broken[name] = self.cluster.sys / "bus/pci/devices" / _address(name) / "boot_vga"
            self.broken[name].write_text("1\n")

    def bound(self) -> set[str]:
        return {device for name in self.prepared for device in self.devices(name)}

    def check(self) -> None:
        super().check()
        functions = read_host(self.cluster.sys).functions
        on_vfio = {name for name in self.groups if functions[PCIAddress.parse(_address(name))].driver == "vfio-pci"}
        assert on_vfio == self.bound(), "a card is bound for nobody, or not bound"


def _address(name: str) -> str:
    _, domain, bus, slot, function = name.split("-")
    return f"{domain}:{bus}:{slot}.{function}"


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    with running_cluster(short_dir, copied_machine("hgx-a100-8-gpu")) as cluster:
        yield cluster


@pytest.fixture
def daily_cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    """The same with all cards on their host's driver, and a kernel that answers who binds them."""
    sys = copied_machine("hgx-a100-8-gpu")
    dev = make_nodes(sys, short_dir / "dev")
    (sys.parent / "proc").mkdir()
    cards = [str(address) for address, function in read_host(sys).functions.items() if function.driver == "vfio-pci"]
    with answering(sys, dev, dict.fromkeys(cards, "nvidia")):
        for address in cards:
            bind(sys, address, "nvidia")
        for group in (dev / "vfio").glob("[0-9]*"):
            group.unlink()
        with running_cluster(short_dir, sys) as cluster:
            cluster.api.takes_conditions = False  # the scheduler here does not wait
            yield cluster


@pytest.mark.parametrize("seed", _SEEDS)
def test_whatever_happens_no_card_is_in_two_claims(cluster: Cluster, seed: int, request: pytest.FixtureRequest) -> None:
    is_thorough = request.config.getoption("--thorough")
    slowest = _live(ClusterLife, cluster, seed, _THOROUGH_ROUNDS if is_thorough else _ROUNDS)
    # Beside the rest of the suite it may take longer.
    assert not is_thorough or slowest < _BACK_WITHIN


def test_whatever_happens_a_card_is_bound_while_a_claim_has_it_and_no_longer(
    daily_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    is_thorough = request.config.getoption("--thorough")
    _live(BindingLife, daily_cluster, _SEEDS[0], _THOROUGH_BINDING_ROUNDS if is_thorough else _BINDING_ROUNDS)


def _live(kind: type[ClusterLife], cluster: Cluster, seed: int, rounds: int) -> float:
    """Let so many things happen, and check after each; the seconds that the slices took at most."""
    with contextlib.ExitStack() as plugins:
        life = kind(cluster, plugins, seed)
        life.live(rounds)
        if not life.api_is_there:
            life.api_goes_or_comes()
        life.check()
    return life.slowest
