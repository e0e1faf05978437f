"""`gpu-plugin serve` beside a kubelet and a Fabric Manager, as processes: with restarts of each."""

import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import grpc
import pytest

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.conftest import Machine
from tests.fabric.standin import SOCKET, Call, Manager
from tests.kernel import bind
from tests.kubelet import Kubelet
from tests.plugin.daemon import fetch, free_port, serve, wait_until
from tests.plugin.fabric.boards import ADDRESSES, NODE
from tests.plugin.fabric.node import OWN_POD, RESOURCE
from tests.processes import Program
from tests.waiting import allowed

Serving = Callable[..., AbstractContextManager[Program]]
ALL = tuple(sorted(ADDRESSES.values()))


@pytest.fixture
def config(manager: Manager, tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    modules = {address: module for module, address in ADDRESSES.items()}
    fabric = {"library": str(manager.library), "manager": SOCKET, "modules": modules, "version": "580.126.09"}
    path.write_text(json.dumps({"fabric": fabric}))
    return path


@pytest.fixture
def plugin(kubelet: Kubelet, config: Path, tmp_path: Path) -> Iterator[Serving]:
    kubelet.pods[OWN_POD] = {}
    flags = ("--config", config, "--state", tmp_path / "state", "--own-pod", OWN_POD)
    return partial(serve, NODE, kubelet.directory, *flags)  # type: ignore[return-value]


def cards(*modules: int) -> list[str]:
    return [ADDRESSES[module] for module in modules]


def preferred(kubelet: Kubelet, available: list[str], size: int) -> list[str]:
    request = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        ]
    )
    response = kubelet.endpoints[RESOURCE].stub.GetPreferredAllocation(request, timeout=allowed(10))
    return list(response.container_responses[0].deviceIDs)


def test_a_pods_partition_from_its_allocation_to_its_end(kubelet: Kubelet, manager: Manager, plugin: Serving) -> None:
    port = free_port()
    with plugin("--metrics", str(port)):
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        free = random.sample(ALL, 8)
        assert sorted(preferred(kubelet, free, 2)) == sorted(cards(2, 4))  # 0000:07:00.0 is module 2
        answer = kubelet.allocate_devices(RESOURCE, cards(1, 3), "default/vm")
        assert manager.active == {(1, 3)}
        assert answer.envs["FABRIC_PARTITION_3"] == ",".join(sorted(cards(1, 3)))
        assert answer.envs["FABRIC_MANAGER_VERSION"] == "580.126.09"
        with pytest.raises(grpc.RpcError) as error:
            kubelet.allocate_devices(RESOURCE, cards(5, 6))
        assert "are modules 5, 6, which are no partition of the Fabric Manager; the nearest" in str(error.value)
        shown = 'gpu_plugin_partition{modules="1,3",owner="pod default/vm",partition="3"} 1.0'
        wait_until(lambda: shown in fetch(port, "/metrics")[1])
        assert "gpu_plugin_sees_fabric 1.0" in fetch(port, "/metrics")[1]
        kubelet.free("default/vm")
        wait_until(lambda: manager.active == set())
    assert manager.log == ["activate 3", "deactivate 3"]


def test_a_plugin_that_is_killed_knows_who_has_what_when_it_is_back(
    kubelet: Kubelet, manager: Manager, plugin: Serving
) -> None:
    with plugin() as first:
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        kubelet.allocate_devices(RESOURCE, cards(1, 3), "default/vm")
        first.send(signal.SIGKILL)
        first.end()
    kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ())
    with plugin():
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        with pytest.raises(grpc.RpcError, match="of pod default/vm, which is not known to be gone"):
            kubelet.allocate_devices(RESOURCE, cards(1, 2, 3, 4), "default/other")
        kubelet.free("default/vm")
        kubelet.allocate_devices(RESOURCE, cards(1, 2, 3, 4), "default/other")
    assert manager.log == ["activate 3", "deactivate 3", "activate 1"]


def test_a_plugin_that_is_killed_while_the_manager_activates_leaves_nothing_behind(
    kubelet: Kubelet, manager: Manager, plugin: Serving
) -> None:
    manager.hangs(Call.ACTIVATE, having_acted=True)
    with plugin() as first:
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        stub = kubelet.endpoints[RESOURCE].stub
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=cards(1, 3))])
        asked = stub.Allocate.future(request)
        wait_until(lambda: manager.active == {(1, 3)})
        first.send(signal.SIGKILL)
        first.end()
        assert asked.code() is not grpc.StatusCode.OK
    with plugin():
        wait_until(lambda: manager.active == set())


def test_a_manager_that_was_restarted_has_its_partitions_again(
    kubelet: Kubelet, manager: Manager, plugin: Serving
) -> None:
    with plugin() as program:
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        kubelet.allocate_devices(RESOURCE, cards(1, 3), "default/vm")
        manager.stop()
        program.wait_for_line("CONNECTION_NOT_VALID")
        with pytest.raises(grpc.RpcError, match="cannot list its partitions: CONNECTION_NOT_VALID"):
            kubelet.allocate_devices(RESOURCE, cards(5))
        manager.restart()
        wait_until(lambda: manager.active == {(1, 3)})


def test_a_kubelet_that_was_restarted_ends_nothing(kubelet: Kubelet, manager: Manager, plugin: Serving) -> None:
    with plugin():
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        kubelet.allocate_devices(RESOURCE, cards(1, 3), "default/vm")
        manager.runs(1, 3)
        # It lists no pod before it has heard from the API server.
        pods, kubelet.pods = kubelet.pods, {}
        kubelet.restart()
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        with pytest.raises(grpc.RpcError, match="not known to be gone"):
            kubelet.allocate_devices(RESOURCE, cards(1, 3))
        kubelet.pods = pods
        kubelet.allocate_devices(RESOURCE, cards(6, 8), "default/another")
    assert manager.log == ["activate 3", "activate 6"]
    assert manager.violations == 0


def test_cards_whose_links_do_not_train_are_unhealthy(kubelet: Kubelet, manager: Manager, plugin: Serving) -> None:
    manager.breaks_links(3)
    with plugin() as program:
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        with pytest.raises(grpc.RpcError, match="NVLINK_ERROR"):
            kubelet.allocate_devices(RESOURCE, cards(1, 3))
        kubelet.wait_until(lambda: set(ALL) - set(kubelet.healthy(RESOURCE)) == set(cards(1, 3)))
        program.wait_for_line("has no NVLink: the Fabric Manager could not train its links")


def test_a_board_with_its_switches_goes_to_one_guest_or_to_none(
    kubelet: Kubelet, copied_machine: Machine, tmp_path: Path
) -> None:
    sys, config = copied_machine(NODE.name), tmp_path / "config.yaml"
    rules = [{"device": device, "resource": "nvidia.com/hgx"} for device in ("10de:20b0", "10de:1af1")]
    config.write_text(json.dumps({"offer": rules, "whole": ["nvidia.com/hgx"]}))
    for number in range(0xC4, 0xCA):
        bind(sys, f"0000:{number:02x}:00.0", "vfio-pci")
    with serve(sys, kubelet.directory, "--config", config):
        kubelet.wait_until(lambda: len(kubelet.healthy("nvidia.com/hgx")) == 14)
        board = list(kubelet.healthy("nvidia.com/hgx"))
        with pytest.raises(grpc.RpcError, match="are 8 of 14, and a container gets all of"):
            kubelet.allocate_devices("nvidia.com/hgx", board[:8])
        answer = kubelet.allocate_devices("nvidia.com/hgx", board)
        assert answer.envs["PCI_RESOURCE_NVIDIA_COM_HGX"] == ",".join(board)


@pytest.mark.parametrize("why", ["no library", "no manager", "another mode"])
def test_without_a_manager_one_line_and_cards_as_ever(
    why: str, kubelet: Kubelet, manager: Manager, plugin: Serving, config: Path
) -> None:
    match why:
        case "no library":
            config.write_text("fabric: {library: libnvfm.so.none}\n")
        case "no manager":
            manager.stop()
        case _:
            manager.mode(0)
    with plugin() as program:
        kubelet.wait_until(lambda: kubelet.healthy(RESOURCE) == ALL)
        kubelet.allocate_devices(RESOURCE, cards(1, 2, 5), "default/vm")
        program.wait_for_line("allocated PCI_RESOURCE")
        lines = [line for line in program.log if "partitions" in line]
        assert len(lines) == 1, lines
        assert "cards are served without partitions: " in lines[0]
