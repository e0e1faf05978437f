"""A node on which everything happens at once, and what must hold all the while: no card in two pods, no card on offer
that cannot be handed out, no registration that stays lost, no answer to Allocate that is not true at its moment.

Processes and sockets are real. What happens is drawn by Hypothesis, a round at a time; what is expected follows from a
model of the node that is kept beside it. Few rounds by default, ten thousand with `--thorough`.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pci.resource import variable
from tests.compose import RTX_2060, RTX_3090, Function, bridge, card, compose
from tests.forked import Fork
from tests.kernel import bind, plug, tell, tells, unplug
from tests.kubelet import Kubelet
from tests.processes import FIXTURES, Program
from tests.temporary import SHORT
from tests.waiting import allowed

VFIO = "vfio-pci"
FOREIGN = "devices.kubevirt.io/gpu"

A_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
A_2060 = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
POOL = "nvidia.com/pgpu"
KVM = "devices.gpu-launcher.dev/kvm"

#: How long a change may take to reach the kubelet, on a machine that does other things too. Seconds.
SETTLES = 10.0

#: The plugin's look at everything: no kernel tells of changes in a composed tree. Where the one that runs here can be
#: made to, every other node has plugins that look when they are told, and never else.
RESCAN, NEVER = 0.2, 3600.0


@dataclass(frozen=True)
class Card:
    slot: str
    group: int
    functions: tuple[Function, ...]

    @property
    def id(self) -> str:
        return self.functions[0].address

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(function.address for function in self.functions)


def _card(slot: str, ids: tuple[str, ...], group: int) -> Card:
    return Card(slot, group, card(slot, ids, path=f"pci0000:00/0000:00:{slot[5:7]}.0", group=group, numa=group % 2))


#: Two that are alone, one with its root port in its group, and two that share a group.
CARDS = (
    _card("0000:01:00", RTX_3090, 11),
    _card("0000:02:00", RTX_3090, 12),
    _card("0000:03:00", RTX_2060, 13),
    _card("0000:04:00", RTX_3090, 14),
    _card("0000:05:00", RTX_3090, 14),
)
ROOT_PORTS = tuple(
    bridge(f"0000:00:{one.slot[5:7]}.0", "1022:1483", path="pci0000:00", group=13 if one.group == 13 else 40 + number)
    for number, one in enumerate(CARDS)
)


@dataclass(frozen=True)
class Offer:
    """A config, and what it means for these cards: the resource of each, None for one that is withheld."""

    text: str
    resource: Callable[[Card], str | None]
    together: bool = False
    kvm: int = 0


def _by_model(one: Card) -> str:
    return A_2060 if one.group == 13 else A_3090


CONFIGS = {
    "by model": Offer("{}\n", _by_model),
    "one pool": Offer(
        f'groups: together\noffer: [{{vendor: "10de", pci_class: "03", resource: {POOL}}}]\n',
        lambda one: POOL,
        together=True,
    ),
    "together": Offer("groups: together\n", _by_model, together=True),
    "without one": Offer(
        f'offer: [{{address: "{CARDS[3].id}", withhold: true}}]\n',
        lambda one: None if one is CARDS[3] else _by_model(one),
    ),
    "without the 2060, with kvm": Offer(
        'node_devices: {kvm: 3}\noffer: [{device: "10de:1f08", withhold: true}]\n',
        lambda one: None if one.group == 13 else A_3090,
        kvm=3,
    ),
}
BROKEN = "offer: [{device: nonsense}]\n"
RESOURCES = (A_3090, A_2060, POOL, KVM)


@dataclass(frozen=True)
class Unit:
    """What is handed out as one: its ID, its cards."""

    resource: str
    id: str
    cards: tuple[Card, ...]


@dataclass
class Node:
    """The node as it should be: what is on the bus and on which driver, and which nodes were lost."""

    sys: Path
    dev: Path
    cdevs: bool
    drivers: dict[str, str | None] = field(
        default_factory=lambda: {address: VFIO for one in CARDS for address in one.addresses}
    )
    unplugged: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def present(self, one: Card) -> tuple[str, ...]:
        return tuple(address for address in one.addresses if address not in self.unplugged)

    def of_group(self, group: int) -> tuple[str, ...]:
        return tuple(address for one in CARDS if one.group == group for address in self.present(one))

    def cdev(self, address: str) -> str:
        return f"vfio/devices/vfio{list(self.drivers).index(address)}"

    def all_nodes(self) -> set[str]:
        """Those the kernel would make, below /dev."""
        found = {"vfio/vfio", "kvm"}
        for group in {one.group for one in CARDS}:
            on_vfio = [address for address in self.of_group(group) if self.drivers[address] == VFIO]
            if on_vfio:
                found.add(f"vfio/{group}")
            if self.cdevs:
                found |= {self.cdev(address) for address in on_vfio}
        return found | {"iommu"} if self.cdevs else found

    def nodes(self) -> set[str]:
        return self.all_nodes() - self.lost

    def make_nodes(self) -> None:
        """Let /dev, and the functions' vfio-dev, be as they should."""
        there = {str(path.relative_to(self.dev)) for path in self.dev.rglob("*") if path.is_file()}
        for name in there - self.nodes():
            (self.dev / name).unlink()
        for name in sorted(self.nodes() - there):
            (self.dev / name).touch()
        if self.cdevs:
            for address, driver in self.drivers.items():
                if address not in self.unplugged:
                    directory = self.sys / "bus/pci/devices" / address / "vfio-dev"
                    node = directory / Path(self.cdev(address)).name
                    if driver == VFIO:
                        node.mkdir(parents=True, exist_ok=True)
                    else:
                        shutil.rmtree(directory, ignore_errors=True)

    def units(self, offer: Offer) -> Iterator[Unit]:
        """What is offered, healthy or not."""
        gpus = [one for one in CARDS if one.id not in self.unplugged and offer.resource(one) is not None]
        for one in gpus:
            mates = tuple(other for other in gpus if other.group == one.group)
            if len(mates) > 1 and not (offer.together and one is mates[0]):
                continue
            resource = offer.resource(one)
            if self.drivers[one.id] == VFIO and resource is not None:
                yield Unit(resource, one.id, mates)

    def nodes_for(self, unit: Unit) -> set[str] | None:
        """The nodes that go with it, None where one is missing."""
        there = self.nodes()
        wanted: set[str] = set()
        if "vfio/vfio" in there:
            wanted |= {"vfio/vfio", f"vfio/{unit.cards[0].group}"}
        if "iommu" in there:
            group = self.of_group(unit.cards[0].group)
            wanted |= {"iommu", *(self.cdev(address) for address in group if self.drivers[address] == VFIO)}
        return wanted if wanted and wanted <= there else None

    def is_viable(self, unit: Unit) -> bool:
        own = {address for one in unit.cards for address in self.present(one)}
        return self.nodes_for(unit) is not None and all(
            self.drivers[address] == VFIO or (address not in own and self.drivers[address] is None)
            for address in self.of_group(unit.cards[0].group)
        )


class Chaos(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="gl-", dir=SHORT))
        self.journal: list[str] = []
        self.plugins: list[Program] = []
        self.started: dict[Program, float] = {}
        #: What each pod has: resource and ID, and the groups that are taken with it.
        self.held: dict[str, dict[tuple[str, str], int]] = {}
        self.wrong_since: dict[tuple[str, str], float] = {}
        self.pods = 0
        self.up = False

    # The world.

    @initialize(
        before_1_37=st.booleans(),
        in_registry=st.booleans(),
        cdevs=st.booleans(),
        by_events=st.booleans(),
        name=st.sampled_from(list(CONFIGS)),
    )
    def begin(self, before_1_37: bool, in_registry: bool, cdevs: bool, by_events: bool, name: str) -> None:
        self.by_events = by_events and tells()
        self.say(f"begin {before_1_37=} {in_registry=} {cdevs=} {self.by_events=} {name=}")
        sys, dev, kubelet_dir = (self.directory / part for part in ("sys", "dev", "kubelet"))
        compose(sys, (*ROOT_PORTS, *(function for one in CARDS for function in one.functions)))
        (dev / "vfio/devices" if cdevs else dev / "vfio").mkdir(parents=True)
        kubelet_dir.mkdir()
        self.registry = self.directory / "registry" if in_registry else None
        if self.registry is not None:
            self.registry.mkdir()
        self.config_file = self.directory / "config" / "config.yaml"
        self.config_file.parent.mkdir()
        self.node = Node(sys, dev, cdevs)
        self.node.make_nodes()
        self.write_config(CONFIGS[name].text)
        self.offer, self.broken = CONFIGS[name], False
        self.kubelet = Kubelet(kubelet_dir, registry=self.registry, before_1_37=before_1_37)
        self.kubelet.start()
        self.up = True
        self.start_plugin()
        self.settle()

    def write_config(self, text: str) -> None:
        """As a ConfigMap changes: another file takes the place."""
        new = self.config_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config_file)

    def say(self, what: str) -> None:
        self.journal.append(f"{time.monotonic():.3f} {what}")

    def story(self) -> str:
        logs = [line for plugin in list(self.started)[-3:] for line in [f"-- {plugin.process.pid}", *plugin.log[-40:]]]
        text = "\n".join(["", *self.journal[-60:], *logs])
        print(text)  # Hypothesis tries again, and the second time may be another story
        return text

    def start_plugin(self) -> None:
        arguments: list[str | Path] = ["serve", "--sysfs", self.node.sys, "--dev", self.node.dev]
        arguments += ["--config", self.config_file, "--kubelet-dir", self.kubelet.directory]
        arguments += ["--pod-resources", self.kubelet.pod_resources, "--pci-ids", FIXTURES / "pci.ids"]
        arguments += ["--rescan", str(NEVER if self.by_events else RESCAN)]
        if self.registry is not None:
            arguments += ["--plugins-registry", self.registry]
        plugin = Program(Fork("gpu-plugin", *arguments))
        self.plugins.append(plugin)
        self.started[plugin] = time.monotonic()

    # What should be.

    def is_taken(self, unit: Unit) -> bool:
        """Whether a pod has something of its group, as something else."""
        group = unit.cards[0].group
        return any(
            taken == group and as_what != (unit.resource, unit.id)
            for has in self.held.values()
            for as_what, taken in has.items()
        )

    def healthy(self) -> Mapping[str, tuple[str, ...]]:
        """What the kubelet should count, by resource."""
        found: dict[str, list[str]] = {resource: [] for resource in RESOURCES}
        for unit in self.node.units(self.offer):
            if self.node.is_viable(unit) and not self.is_taken(unit):
                found[unit.resource].append(unit.id)
        if "kvm" in self.node.nodes():
            found[KVM] = [f"kvm-{number}" for number in range(self.offer.kvm)]
        return {resource: tuple(sorted(ids)) for resource, ids in found.items()}

    def seen(self) -> Mapping[str, tuple[str, ...]]:
        """What it does count."""
        return {resource: self.kubelet.healthy(resource) for resource in RESOURCES}

    def taken_groups(self) -> set[int]:
        return {group for has in self.held.values() for group in has.values()}

    # What happens to the node.

    def node_changed(self) -> None:
        self.node.make_nodes()
        if self.by_events:
            tell()

    @rule(
        address=st.sampled_from([address for one in CARDS for address in one.addresses]),
        driver=st.sampled_from([VFIO, VFIO, "snd_hda_intel", None]),
    )
    def rebind(self, address: str, driver: str | None) -> None:
        # The kernel waits with the unbinding until whoever has the group lets it go.
        if self.group_of(address) in self.taken_groups() or address in self.node.unplugged:
            return
        self.say(f"rebind {address} {driver}")
        bind(self.node.sys, address, driver)
        self.node.drivers[address] = driver
        self.node_changed()

    @rule(which=st.integers(0, len(CARDS) - 1), whole=st.booleans())
    def take_out(self, which: int, whole: bool) -> None:
        one = CARDS[which]
        if one.group in self.taken_groups():
            return
        for address in self.node.present(one) if whole else self.node.present(one)[-1:]:
            self.say(f"unplug {address}")
            unplug(self.node.sys, address)
            self.node.unplugged.add(address)
        self.node_changed()

    @rule(which=st.integers(0, len(CARDS) - 1))
    def put_back(self, which: int) -> None:
        for address in CARDS[which].addresses:
            if address in self.node.unplugged:
                self.say(f"plug {address}")
                plug(self.node.sys, address)
                self.node.unplugged.discard(address)
        self.node_changed()

    @rule(choice=st.integers(0, 1000))
    def lose_a_node(self, choice: int) -> None:
        names = sorted(self.node.nodes())
        if names:
            self.node.lost.add(names[choice % len(names)])
            self.say(f"lose {names[choice % len(names)]}")
            self.node_changed()

    @rule()
    def find_all_nodes(self) -> None:
        if self.node.lost:
            self.say("find all nodes")
        self.node.lost.clear()
        self.node_changed()

    @rule()
    def put_all_right(self) -> None:
        self.say("put all right")
        for address in sorted(self.node.unplugged):
            plug(self.node.sys, address)
        self.node.unplugged.clear()
        self.node.lost.clear()
        for address, driver in self.node.drivers.items():
            if driver != VFIO:
                bind(self.node.sys, address, VFIO)
                self.node.drivers[address] = VFIO
        self.node_changed()

    def group_of(self, address: str) -> int:
        return next(one.group for one in CARDS if address in one.addresses)

    # What happens to the config.

    @rule(name=st.sampled_from(list(CONFIGS)), by_signal=st.booleans())
    def reconfigure(self, name: str, by_signal: bool) -> None:
        self.say(f"reconfigure {name} {by_signal=}")
        changes = CONFIGS[name] is not self.offer
        self.change_config(CONFIGS[name].text, by_signal, "in force" if changes else None)
        self.offer, self.broken = CONFIGS[name], False

    @rule(by_signal=st.booleans())
    def break_the_config(self, by_signal: bool) -> None:
        self.say("break the config")
        self.change_config(BROKEN, by_signal, "stays as it was")
        self.broken = True

    def change_config(self, text: str, by_signal: bool, says: str | None) -> None:
        """Change the file, and wait until every plugin says what it made of it."""
        while not all(plugin.log or time.monotonic() > self.started[plugin] + allowed(10) for plugin in self.plugins):
            time.sleep(0.005)  # one that is only starting dies of the signal
        said = {plugin: self.count(plugin, says) for plugin in self.plugins}
        if by_signal:
            self.config_file.write_text(text)
            for plugin in self.plugins:
                plugin.send(signal.SIGHUP)
        else:
            self.write_config(text)
        until = time.monotonic() + allowed(SETTLES)
        while says is not None and any(self.count(plugin, says) == said[plugin] for plugin in self.plugins):
            assert time.monotonic() < until, f"a plugin has not read its config{self.story()}"
            time.sleep(0.002)

    def count(self, plugin: Program, text: str | None) -> int:
        return sum(text is not None and text in line for line in plugin.log)

    # What happens to the plugins and the kubelet.

    @precondition(lambda self: self.up_to_date() and len(self.plugins) < 2)
    @rule()
    def another_plugin(self) -> None:
        self.say("another plugin")
        self.start_plugin()

    def up_to_date(self) -> bool:
        return not self.broken

    @precondition(lambda self: self.plugins)
    @rule(which=st.integers(0, 1))
    def kill_a_plugin(self, which: int) -> None:
        plugin = self.plugins.pop(which % len(self.plugins))
        self.say(f"kill {plugin.process.pid}")
        plugin.kill()

    @precondition(lambda self: self.plugins)
    @rule(which=st.integers(0, 1))
    def end_a_plugin(self, which: int) -> None:
        plugin = self.plugins.pop(which % len(self.plugins))
        self.say(f"terminate {plugin.process.pid}")
        started = any("watched by the kubelet" in line for line in plugin.log)
        plugin.send(signal.SIGTERM)
        code = plugin.end(30)
        assert code == 0 or (not started and code == -signal.SIGTERM), f"exit code {code}{self.story()}"

    @precondition(lambda self: self.up)
    @rule(killed=st.booleans())
    def restart_kubelet(self, killed: bool) -> None:
        self.say(f"restart the kubelet, {killed=}")
        self.kubelet.stop(killed=killed)
        self.kubelet.start()

    @precondition(lambda self: self.up)
    @rule(killed=st.booleans())
    def stop_kubelet(self, killed: bool) -> None:
        self.say(f"stop the kubelet, {killed=}")
        self.kubelet.stop(killed=killed)
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def start_kubelet(self) -> None:
        self.say("start the kubelet")
        self.kubelet.start()
        self.up = True

    @precondition(lambda self: self.up)
    @rule(choice=st.integers(0, 1000))
    def lose_a_stream(self, choice: int) -> None:
        endpoints = [endpoint for endpoint in self.kubelet.endpoints.values() if endpoint.lists]
        if endpoints:
            self.say(f"lose a stream of {endpoints[choice % len(endpoints)].name}")
            endpoints[choice % len(endpoints)].channel.close()

    @rule(choice=st.integers(0, 1000))
    def lose_a_socket(self, choice: int) -> None:
        sockets = sorted((self.registry or self.kubelet.directory).glob("gpu-plugin-*.sock"))
        if sockets:
            self.say(f"lose {sockets[choice % len(sockets)].name}")
            sockets[choice % len(sockets)].unlink(missing_ok=True)

    # What happens with pods.

    @precondition(lambda self: self.up)
    @rule(choice=st.integers(0, 1000), count=st.integers(1, 3), settled=st.booleans())
    def allocate(self, choice: int, count: int, settled: bool) -> None:
        answer = None
        # What is free may be refused when a plugin ends just then, or has not heard yet of a pod's end; not for long.
        for _ in range(3 if settled else 1):
            if settled:
                self.settle()
            free = {
                resource: [device for device in healthy if not self.has(resource, device)]
                for resource, healthy in self.seen().items()
            }
            resources = [resource for resource in RESOURCES if free[resource]]
            if not resources:
                return
            resource = resources[choice % len(resources)]
            ids = random.sample(free[resource], min(count, len(free[resource])))
            pod = self.new_pod()
            units = {unit.id: unit for unit in self.node.units(self.offer) if unit.resource == resource}
            self.say(f"allocate {resource} {ids} to {pod}")
            try:
                answer = self.kubelet.allocate_devices(resource, ids, pod)
                break
            except (grpc.RpcError, ValueError, KeyError) as error:
                self.say(f"  refused: {error.details() if isinstance(error, grpc.Call) else error!r}")
                time.sleep(0.7 if settled else 0)
        if answer is None:
            assert not settled, f"refused what is free{self.story()}"
            return
        hosts = {node.host_path.removeprefix("/dev/") for node in answer.devices}
        if resource == KVM:
            assert hosts == {"kvm"} <= self.node.nodes(), self.story()
            self.held[pod] = {}
            return
        assert dict(answer.envs) == {variable(resource): ",".join(sorted(ids))}, self.story()
        wanted: set[str] = set()
        for device in ids:
            assert device in units, f"{device} is not on offer{self.story()}"
            assert self.node.is_viable(units[device]), f"{device} is not viable{self.story()}"
            assert units[device].cards[0].group not in self.taken_groups(), f"{device} is in two pods{self.story()}"
            wanted |= self.node.nodes_for(units[device]) or set()
        assert hosts == wanted, self.story()
        self.held[pod] = {(resource, device): units[device].cards[0].group for device in ids}

    def has(self, resource: str, device_id: str) -> bool:
        return any(device_id in has.get(resource, ()) for has in self.kubelet.pods.values())

    def new_pod(self) -> str:
        self.pods += 1
        return f"default/pod-{self.pods}"

    @rule(which=st.integers(0, len(CARDS) - 1), style=st.sampled_from(["first", "last", "group"]))
    def another_plugin_gives(self, which: int, style: str) -> None:
        one = CARDS[which]
        if one.group in self.taken_groups() or not self.node.present(one):
            return
        ids = {"first": one.addresses[0], "last": self.node.present(one)[-1], "group": str(one.group)}
        pod = self.new_pod()
        self.say(f"another plugin gives {ids[style]} to {pod}")
        self.held[pod] = {(FOREIGN, ids[style]): one.group}
        self.kubelet.give(pod, FOREIGN, [ids[style]])
        # Until the kubelet has told, nobody can know.
        self.settle()

    @rule(choice=st.integers(0, 1000), all_of_them=st.booleans())
    def end_pods(self, choice: int, all_of_them: bool) -> None:
        pods = sorted(self.held)
        for pod in pods if all_of_them else pods[choice % (len(pods) + 1) :][:1]:
            self.say(f"{pod} ends")
            del self.held[pod]
            self.kubelet.free(pod)
        if self.by_events and self.up:
            # Whoever looks only when told hears of it with the kubelet's next allocation.
            self.kubelet.give("default/another", "example.com/nic", ["eth1"])

    @rule(name=st.sampled_from(list(CONFIGS)), choice=st.integers(0, 1000))
    def all_is_well(self, name: str, choice: int) -> None:
        """A time to hand something out."""
        if not self.up:
            self.start_kubelet()
        self.reconfigure(name, by_signal=False)
        if not self.plugins:
            self.another_plugin()
        self.end_pods(0, all_of_them=True)
        self.put_all_right()
        for number in range(2):
            self.allocate(choice + number, 1 + choice % 2, settled=True)

    # What must hold.

    @rule(milliseconds=st.integers(0, 700))
    def time_passes(self, milliseconds: int) -> None:
        self.say(f"{milliseconds} ms pass")
        time.sleep(milliseconds / 1000)

    @rule()
    def settle(self) -> None:
        """What the kubelet counts becomes what it should."""
        if not self.up:
            return
        began = time.monotonic()
        wanted = self.healthy() if self.plugins else dict.fromkeys(RESOURCES, ())
        until = began + allowed(SETTLES)
        while (seen := self.seen()) != wanted:
            assert time.monotonic() < until, f"{wanted=}\n{seen=}{self.story()}"
            time.sleep(0.005)
        took = time.monotonic() - began
        self.say(f"settled in {took:.2f} s")
        if os.environ.get("CHAOS_LOG"):
            with Path(os.environ["CHAOS_LOG"]).open("a") as log:
                log.write(f"{took:.3f} {self.journal[-3:-1]}\n")

    @invariant()
    def nothing_is_wrong_for_long(self) -> None:
        if not self.up:
            self.wrong_since.clear()
            return
        wanted, seen = self.healthy(), self.seen()
        wrong = {(resource, ID) for resource in RESOURCES for ID in set(seen[resource]) - set(wanted[resource])}
        now = time.monotonic()
        self.wrong_since = {one: self.wrong_since.get(one, now) for one in wrong}
        for one, since in self.wrong_since.items():
            assert now - since < allowed(SETTLES), (
                f"{one} is on offer, and has not been so for {now - since:.1f} s{self.story()}"
            )

    @invariant()
    def every_plugin_lives(self) -> None:
        for plugin in self.started:
            assert not any("Traceback" in line for line in plugin.log), self.story()
        for plugin in self.plugins:
            assert plugin.process.poll() is None, f"a plugin has ended{self.story()}"

    def teardown(self) -> None:
        if os.environ.get("CHAOS_LOG"):
            with Path(os.environ["CHAOS_LOG"] + ".journal").open("a") as log:
                log.write("\n".join(self.journal) + "\n")
        for plugin in self.started:
            plugin.kill()
        if self.up:
            self.kubelet.stop()
        shutil.rmtree(self.directory)


def test_whatever_happens_the_kubelet_is_told_the_truth(pytestconfig: pytest.Config) -> None:
    rounds = 10_000 if pytestconfig.getoption("--thorough") else 300
    steps = 50
    run_state_machine_as_test(
        Chaos,
        settings=settings(
            deadline=None,
            max_examples=rounds // steps,
            stateful_step_count=steps,
            phases=[Phase.generate],  # each step takes its time, and is not the same twice
            suppress_health_check=list(HealthCheck),
        ),
    )
