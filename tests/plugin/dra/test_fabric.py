"""The driver beside a Fabric Manager: a claim has its partition before it is prepared, and until it is unprepared."""

import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pci.device_metadata import documents
from plugin.dra.slices import device_name
from plugin.fabric.abi import Code
from tests.conftest import Machine
from tests.fabric.standin import SOCKET, Call, Manager, compiled
from tests.plugin.dra.cluster import Cluster, running_cluster, wait_until
from tests.plugin.fabric.boards import ADDRESSES, NODE
from tests.plugin.fabric.node import device
from tests.processes import Program

NAMES = {module: device_name(device(module)) for module in ADDRESSES}


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    library = tmp_path / "library"
    library.mkdir()
    return Manager(compiled(library), tmp_path)


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    with running_cluster(short_dir, copied_machine(NODE.name)) as cluster:
        cluster.api.takes_conditions = False
        yield cluster


def driver(cluster: Cluster, manager: Manager) -> AbstractContextManager[Program]:
    modules = {address: module for module, address in ADDRESSES.items()}
    fabric = {"library": str(manager.library), "manager": SOCKET, "modules": modules}
    return cluster.driver(
        json.dumps({"serve": "dra", "fabric": fabric}), "--state", cluster.directory / "partitions", "--rescan", "2"
    )


def claim(cluster: Cluster, *modules: int) -> dict[str, Any]:
    return cluster.claim(*(NAMES[module] for module in modules))


def prepare(cluster: Cluster, claim: dict[str, Any]) -> str:
    (answer,) = cluster.kubelet.prepare(claim).values()
    assert (answer.error == "") is bool(answer.devices)
    return answer.error


def unprepare(cluster: Cluster, claim: dict[str, Any]) -> str:
    (error,) = cluster.kubelet.unprepare(claim).values()
    return error


def test_a_claims_partition_from_prepare_to_unprepare(cluster: Cluster, manager: Manager) -> None:
    one, other = claim(cluster, 1, 3), claim(cluster, 1, 2, 3, 4)
    loaded = cluster.sys / "module" / "nvidia" / "version"
    loaded.parent.mkdir(parents=True)
    loaded.write_text("580.126.09\n")
    with driver(cluster, manager) as plugin:
        wait_until(lambda: len(cluster.published()) == 8)
        its = cluster.published()[NAMES[3]]["attributes"]
        assert [its[f"partition{size}"]["int"] for size in (1, 2, 4, 8)] == [9, 3, 1, 0]
        assert its["moduleID"] == {"int": 3}
        assert its["fabricManagerVersion"] == {"string": "580.126.09"}
        # A partition's cards are side by side; the lower addresses, 2 and 4, are behind when another pair is broken.
        assert list(cluster.published()) == [NAMES[module] for module in (2, 4, 1, 3, 6, 8, 5, 7)]
        assert prepare(cluster, one) == prepare(cluster, one) == ""
        wait_until(lambda: list(cluster.published()) == [NAMES[module] for module in (1, 3, 2, 4, 6, 8, 5, 7)])
        assert manager.active == {(1, 3)}
        specification = cluster.specifications()[one["metadata"]["uid"]]
        (mount,) = specification["devices"][1]["containerEdits"]["mounts"]
        (told,) = next(documents(Path(mount["hostPath"]).read_text()))["requests"][0]["devices"]
        assert told["attributes"] == its
        pair = ",".join(sorted((ADDRESSES[1], ADDRESSES[3])))
        assert [each["containerEdits"]["env"] for each in specification["devices"]] == [
            [f"FABRIC_PARTITION_3={pair}", "FABRIC_MANAGER_VERSION=580.126.09"]
        ] * 2
        assert "is prepared for claim" in prepare(cluster, other)
        plugin.send(signal.SIGKILL)
        plugin.end()
    with driver(cluster, manager):
        assert prepare(cluster, one) == ""
        assert unprepare(cluster, one) == unprepare(cluster, one) == ""
        assert manager.active == set()
        assert prepare(cluster, other) == ""
    assert manager.log == ["activate 3", "deactivate 3", "activate 1"]


def test_a_claim_over_the_lines_of_partitions_is_refused_and_nothing_is_left(
    cluster: Cluster, manager: Manager
) -> None:
    with driver(cluster, manager):
        wait_until(lambda: len(cluster.published()) == 8)
        error = prepare(cluster, claim(cluster, 5, 6))
        assert "are modules 5, 6, which are no partition of the Fabric Manager; the nearest that are: 0000:" in error
        assert (cluster.checkpoint(), cluster.specifications(), manager.log) == ({}, {}, [])
        assert prepare(cluster, claim(cluster, 5, 7)) == ""


def test_a_claim_is_not_given_back_while_its_partition_is_active(cluster: Cluster, manager: Manager) -> None:
    one = claim(cluster, 1, 3)
    with driver(cluster, manager):
        wait_until(lambda: len(cluster.published()) == 8)
        assert prepare(cluster, one) == ""
        manager.answers(Call.DEACTIVATE, -1)
        assert "cannot deactivate it" in unprepare(cluster, one)
        assert "is prepared for claim" in prepare(cluster, claim(cluster, 1, 3))
        assert unprepare(cluster, one) == ""
        assert manager.active == set()


def test_what_another_boot_prepared_has_no_partition(cluster: Cluster, manager: Manager) -> None:
    boot = cluster.sys.parent / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    with driver(cluster, manager):
        wait_until(lambda: len(cluster.published()) == 8)
        assert prepare(cluster, claim(cluster, 1, 3)) == ""
    boot.write_text("two\n")
    with driver(cluster, manager):
        wait_until(lambda: manager.active == set())
        wait_until(lambda: cluster.specifications() == {})


def test_files_that_are_gone_do_not_cost_a_running_guest_its_partition(cluster: Cluster, manager: Manager) -> None:
    one = claim(cluster, 1, 3)
    with driver(cluster, manager):
        wait_until(lambda: len(cluster.published()) == 8)
        assert prepare(cluster, one) == ""
        for file in [*cluster.cdi.iterdir(), *(cluster.state / "metadata").rglob("*.json")]:
            file.unlink()
        for directory in (cluster.state / "metadata").iterdir():
            directory.rmdir()
        manager.answers(Call.GET, -1, times=1000)  # a look of the driver's own may ask too
        assert "cannot list its partitions" in prepare(cluster, one)
        assert manager.active == {(1, 3)}
        manager.answers(Call.GET, -1, times=0)
        assert prepare(cluster, one) == ""
    assert manager.log == ["activate 3"]


def test_a_partition_that_does_not_train_is_known_before_its_pod_comes(cluster: Cluster, manager: Manager) -> None:
    cluster.api.takes_conditions = True
    with driver(cluster, manager):
        wait_until(lambda: all(each.get("bindingConditions") for each in cluster.published().values() or [{}]))
        manager.answers(Call.ACTIVATE, Code.NVLINK_ERROR)
        one = claim(cluster, 1, 3)
        wait_until(lambda: len(cluster.status(one)) == 2)
        assert all("no NVLink trained" in told["gpu-launcher.dev/Failed"] for told in cluster.status(one).values())
        assert (cluster.checkpoint(), manager.active) == ({}, set())
        cluster.wait_for(*(name for module, name in NAMES.items() if module not in (1, 3)))
        other = claim(cluster, 2, 4)
        wait_until(lambda: all("Ready" in told for told in cluster.status(other).values() or [{}]))
        assert manager.active == {(2, 4)}
        cluster.delete(other)
        wait_until(lambda: manager.active == set())
