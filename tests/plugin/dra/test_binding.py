"""bind: when-claimed, with a kernel that answers: a card is with its host's driver until a claim has it, and again when
that claim ends, whatever happens in between."""

import asyncio
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from pci.sysfs.functions import read_host
from plugin.cards.config import Config
from plugin.changes.users import KubeletList, users
from plugin.dra.binder import Binder
from plugin.dra.checkpoint import Checkpoint
from plugin.dra.tasks import StillAtWork
from plugin.watch.watch import Durations
from tests.conftest import Machine
from tests.kernel import Kernel, answering, bind, make_nodes, part, process
from tests.plugin.daemon import processes
from tests.plugin.dra.cluster import Cluster, running_cluster, wait_until
from tests.plugin.test_nvml import UUID, tells
from tests.processes import kill_all

FIRST, SECOND = "pci-0000-01-00-0", "pci-0000-e1-00-0"
GPU, AUDIO = "0000:01:00.0", "0000:01:00.1"
DAILY = {"0000:01:00.0": "nvidia", "0000:01:00.1": "snd_hda_intel", "0000:e1:00.0": "nvidia"}
DAILY["0000:e1:00.1"] = "snd_hda_intel"
_NOBODY = partial(users, listed=KubeletList(), claimed={})
CONFIG = "serve: dra\nbind: when-claimed\n"


class Node:
    """A cluster whose cards are with their daily drivers, and the kernel of its node."""

    def __init__(self, cluster: Cluster, kernel: Kernel) -> None:
        self.cluster = cluster
        self.kernel = kernel
        self.proc = cluster.sys.parent / "proc"
        self.former = cluster.directory / "former"

    @contextmanager
    def driver(self, config: str = CONFIG) -> Iterator[Any]:
        with self.cluster.driver(config, "--state", self.former) as program:
            yield program

    def drivers(self) -> list[str | None]:
        """Of the first card's functions."""
        return [
            function.driver
            for address, function in read_host(self.cluster.sys).functions.items()
            if str(address) in (GPU, AUDIO)
        ]

    def is_daily(self) -> bool:
        return self.drivers() == ["nvidia", "snd_hda_intel"]

    def prepare(self, claim: dict[str, Any]) -> str:
        (answer,) = self.cluster.kubelet.prepare(claim).values()
        assert bool(answer.devices) is not bool(answer.error)
        return answer.error

    def unprepare(self, claim: dict[str, Any]) -> str:
        (error,) = self.cluster.kubelet.unprepare(claim).values()
        return error

    def taint(self, name: str) -> str | None:
        taints = self.cluster.published()[name].get("taints")
        return None if taints is None else taints[0]["value"]


@pytest.fixture
def node(copied_machine: Machine, short_dir: Path) -> Iterator[Node]:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, short_dir / "dev")
    (sys.parent / "proc").mkdir()
    with answering(sys, dev, DAILY) as kernel:
        for address, driver in DAILY.items():
            bind(sys, address, driver)
        for group in (dev / "vfio").glob("[0-9]*"):
            group.unlink()
        with running_cluster(short_dir, sys) as cluster:
            cluster.api.takes_conditions = False  # test_conditions.py has where it does
            yield Node(cluster, kernel)


def test_a_card_is_bound_for_its_claim_and_given_back_after_it(node: Node) -> None:
    tells(node.proc.parent, UUID, GPU)
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        attributes = node.cluster.published()[FIRST]["attributes"]
        assert (attributes["driver"], attributes["nvmlUUID"]) == ({"string": "nvidia"}, {"string": UUID})
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
        (specification,) = node.cluster.specifications().values()
        nodes = [each["path"] for each in specification["devices"][0]["containerEdits"]["deviceNodes"]]
        assert nodes == ["/dev/vfio/vfio", "/dev/vfio/11"]
        assert node.prepare(claim) == ""
        assert len(node.kernel.bound) == 2  # once each
        shutil.rmtree(node.proc / "driver")
        wait_until(lambda: node.cluster.published()[FIRST]["attributes"].get("driver") == {"string": "vfio-pci"})
        assert node.cluster.published()[FIRST]["attributes"]["nvmlUUID"] == {"string": UUID}
        assert node.unprepare(claim) == ""
        assert node.is_daily()
        assert (node.cluster.specifications(), node.cluster.checkpoint()) == ({}, {})
        wait_until(lambda: node.cluster.published()[FIRST]["attributes"].get("driver") == {"string": "nvidia"})
        node.cluster.wait_for(FIRST, SECOND)
        assert node.prepare(node.cluster.claim(FIRST, SECOND)) == ""


def test_what_somebody_bound_by_hand_stays_bound(node: Node) -> None:
    for address in (GPU, AUDIO):
        bind(node.cluster.sys, address, "vfio-pci")
    (node.cluster.directory / "dev/vfio/11").touch()
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST, SECOND)
        assert node.prepare(claim) == ""
        assert [len(each["bound"]) for each in node.cluster.checkpoint()[claim["metadata"]["uid"]]["devices"]] == [0, 2]
        assert node.unprepare(claim) == ""
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
        assert [address for address, _ in node.kernel.bound if address.startswith("0000:01")] == []
        node.cluster.wait_for(FIRST, SECOND)


# What bind refuses is tainted, and refused.


def test_a_card_that_a_process_has_open_is_tainted_and_refused_until_it_ends(node: Node) -> None:
    part(node.cluster.sys, GPU, "drm/card1", "drm", "dri/card1")
    process(node.proc, 812, "python", "/dev/dri/card1")
    with node.driver():
        node.cluster.wait_for(SECOND)
        assert node.taint(FIRST) == "cannot-be-bound-to-vfio-it-is-in-use-dev-dri-card1-is-open-in-p"
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == (
            "0000:01:00.0 of nvidia.com/GA102_GEFORCE_RTX_3090: cannot be handed out: it cannot be bound to vfio: "
            "it is in use: /dev/dri/card1 is open in python (pid 812); end that first"
        )
        assert (node.is_daily(), node.cluster.checkpoint()) == (True, {})
        (node.proc / "812/fd/3").unlink()
        assert node.prepare(claim) == ""  # without a wait for the next look
        assert node.unprepare(claim) == ""
        node.cluster.wait_for(FIRST, SECOND)


def test_the_nodes_own_card_is_tainted_with_why(node: Node) -> None:
    (node.cluster.sys / "bus/pci/devices" / GPU / "boot_vga").write_text("1\n")
    with node.driver():
        node.cluster.wait_for(SECOND)
        assert node.taint(FIRST) == "cannot-be-bound-to-vfio-it-is-the-boot-VGA-the-node-s-own-scree"
        assert "is the boot VGA, the node's own screen" in node.prepare(node.cluster.claim(FIRST))
        _, why = node.cluster.kubelet.health()[FIRST]
        assert why.startswith("it cannot be bound to vfio: it is the boot VGA")


def test_where_processes_cannot_be_seen_nothing_is_bound(node: Node) -> None:
    (node.proc / "1/ns").mkdir(parents=True)
    (node.proc / "1/ns/pid").symlink_to("pid:[4026532999]")
    with node.driver():
        wait_until(lambda: FIRST in node.cluster.published())
        node.cluster.wait_for()
        assert "who uses it cannot be seen" in node.prepare(node.cluster.claim(FIRST))


def test_a_process_that_the_kernel_does_not_answer_for_keeps_cards_from_claims_and_nothing_else(node: Node) -> None:
    (node.proc / "4711").mkdir()
    os.mkfifo(node.proc / "4711/comm")  # whoever opens it waits
    with node.driver():
        wait_until(lambda: FIRST in node.cluster.published())
        node.cluster.wait_for()
        _, why = node.cluster.kubelet.health()[FIRST]
        assert why.startswith(f"it cannot be bound to vfio: {node.proc}/4711/comm the kernel did not answer")
        (node.proc / "4711/comm").unlink()
        node.cluster.wait_for(FIRST, SECOND)


def test_without_when_claimed_a_card_on_its_own_driver_is_not_published(node: Node) -> None:
    with node.driver("serve: dra\n") as plugin:
        plugin.wait_for_line("0000:01:00.0 (GA102 [GeForce RTX 3090]) is not on offer: it is bound to nvidia")
        assert node.cluster.published() == {}
        (node.cluster.directory / "config.yaml").write_text(CONFIG)
        node.cluster.wait_for(FIRST, SECOND)


def test_when_claimed_without_dra_is_refused_at_the_start(node: Node) -> None:
    with node.driver("bind: when-claimed\n") as plugin:
        assert plugin.end() == 2
    assert plugin.log[-1].startswith("ERROR ")
    assert "bind: found when-claimed, and no device is served by DRA; say serve: dra" in plugin.log[-1]


# What goes wrong on the way.


def test_a_driver_that_fails_is_the_claims_error_and_leaves_the_card_as_it_was(node: Node) -> None:
    node.kernel.refusing.add((GPU, "vfio-pci"))
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        why = node.prepare(claim)
        as_before = "and everything is as it was before; the kernel's log says why (dmesg)"
        assert why == f"{GPU}: is on no driver, expected vfio-pci, {as_before}"
        assert (node.is_daily(), node.cluster.checkpoint(), node.cluster.specifications()) == (True, {}, {})
        node.kernel.refusing.clear()
        assert node.prepare(claim) == ""


def test_a_card_that_is_not_given_back_is_tainted_and_its_claim_is_asked_for_again(node: Node) -> None:
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        node.kernel.refusing.add((GPU, "nvidia"))
        why = node.unprepare(claim)
        as_before = "and everything is as it was before; the kernel's log says why (dmesg)"
        assert why == f"{GPU}: is on no driver, expected nvidia, {as_before}"
        assert node.cluster.specifications() == {}
        node.cluster.wait_for(SECOND)
        assert str(node.taint(FIRST)).startswith("was-not-given-back-to-its-driver-0000-01-00.0-is-on-no-driver")
        # Another claim does not get it meanwhile.
        assert "is prepared for claim vms/claim-0 already" in node.prepare(node.cluster.claim(FIRST))
        node.kernel.refusing.clear()
        assert node.unprepare(claim) == ""
        assert (node.is_daily(), node.cluster.checkpoint()) == (True, {})
        node.cluster.wait_for(FIRST, SECOND)


def test_a_plugin_that_was_killed_while_it_bound_is_mended_by_the_next(node: Node) -> None:
    node.kernel.refusing.add((GPU, "vfio-pci"))
    with node.driver() as plugin:
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        with ThreadPoolExecutor() as kubelet:
            answer = kubelet.submit(node.prepare, claim)
            wait_until(lambda: node.drivers() == [None, "vfio-pci"])
            kill_all(sorted(processes(plugin)))  # as a container ends
            assert isinstance(answer.exception(), grpc.RpcError)
    node.kernel.refusing.clear()
    (begun,) = node.cluster.checkpoint().values()
    assert (begun["completed"], begun["devices"][0]["bound"]) == (False, [GPU, AUDIO])
    with node.driver():
        wait_until(lambda: node.cluster.checkpoint() == {})
        assert node.is_daily()
        node.cluster.wait_for(FIRST, SECOND)
        assert node.prepare(claim) == ""


def test_a_claim_that_was_begun_and_bound_goes_on_or_is_given_back(node: Node) -> None:
    checkpoint = Checkpoint(node.cluster.state, "")

    def is_begun() -> None:
        checkpoint.write({uid: replace(its, completed=False) for uid, its in checkpoint.read().items()})
        for file in node.cluster.cdi.iterdir():
            file.unlink()

    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        is_begun()
        assert node.prepare(claim) == ""
        assert len(node.kernel.bound) == 2  # and was never unbound
        assert node.cluster.checkpoint()[claim["metadata"]["uid"]]["completed"]
        is_begun()
    with node.driver():
        wait_until(lambda: node.cluster.checkpoint() == {})
        assert node.is_daily()


def test_a_claim_that_was_allocated_anew_has_the_new_card_and_gives_back_the_old(node: Node) -> None:
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        claim["status"]["allocation"]["devices"]["results"][0]["device"] = SECOND
        assert node.prepare(claim) == ""
        assert node.is_daily()
        assert node.unprepare(claim) == ""
        node.cluster.wait_for(FIRST, SECOND)


def test_a_card_that_another_plugin_gave_a_pod_stays_on_vfio_when_its_claim_ends_until_the_pod_does(
    node: Node,
) -> None:
    from tests.kubelet import running_kubelet  # after the fork of the kernel: gRPC has threads

    with running_kubelet(node.cluster.directory) as kubelet, node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        kubelet.give("vms/vm-a", "example.com/gpu", [GPU])
        kubelet._write_checkpoint()
        wait_until(lambda: node.taint(FIRST) is not None)
        assert f"{GPU}: it is in use: given to pod vms/vm-a; end that first" in node.unprepare(claim)
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
        kubelet.free("vms/vm-a")
        kubelet._write_checkpoint()
        wait_until(lambda: node.unprepare(claim) == "")
        assert node.is_daily()


def test_what_a_driver_holds_up_goes_on_without_whoever_waits(node: Node) -> None:
    durations = defaultdict[tuple[str, str], Durations](Durations)

    async def bound_late() -> str:
        with pytest.raises(StillAtWork) as error:
            await Binder(node.cluster.sys, node.former, durations, at_most=0.01).bind([GPU, AUDIO], Config(), _NOBODY)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        return str(error.value)

    assert asyncio.run(bound_late()).startswith(f"gpu-plugin bind {GPU} {AUDIO}: has not ended within 0.01 s")
    assert {key: each.up_to[-1] for key, each in durations.items()} == {("bind", "done"): 1}
    assert node.drivers() == ["vfio-pci", "vfio-pci"]


def test_who_asks_again_waits_for_what_goes_on(node: Node) -> None:
    async def asked_again() -> frozenset[str]:
        binder = Binder(node.cluster.sys, node.former, defaultdict(Durations))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(binder.bind([GPU, AUDIO], Config(), _NOBODY), 0.01)  # as the kubelet goes away
        return await binder.bind([GPU, AUDIO], Config(), _NOBODY)

    assert asyncio.run(asked_again()) == frozenset()  # the first one has bound them
    assert node.kernel.bound == [(AUDIO, "vfio-pci"), (GPU, "vfio-pci")]


def test_another_boot_binds_anew_and_gives_nothing_back(node: Node) -> None:
    boot = node.proc / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
    boot.write_text("two\n")
    for address in (GPU, AUDIO):
        bind(node.cluster.sys, address, DAILY[address])
        (node.cluster.sys / "bus/pci/devices" / address / "driver_override").write_text("(null)\n")
    with node.driver():
        node.cluster.wait_for(FIRST, SECOND)
        wait_until(lambda: node.cluster.specifications() == {})
        assert node.prepare(claim) == ""
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
        assert node.unprepare(claim) == ""
        assert node.is_daily()


def test_a_plugin_that_ends_leaves_a_claims_card_bound_and_the_next_gives_it_back(node: Node) -> None:
    with node.driver() as plugin:
        node.cluster.wait_for(FIRST, SECOND)
        claim = node.cluster.claim(FIRST)
        assert node.prepare(claim) == ""
        plugin.send(signal.SIGTERM)
        assert plugin.end() == 0
    # Also under a config that binds nothing any more.
    with node.driver("serve: dra\n"):
        node.cluster.wait_for(FIRST)
        assert node.prepare(claim) == ""
        assert node.unprepare(claim) == ""
        assert node.is_daily()
