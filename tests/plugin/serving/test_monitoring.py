"""What the daemon tells the kubelet's probes."""

import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from plugin.serving.monitoring import REGISTERED
from tests.conftest import Machine
from tests.kubelet import Kubelet, running_kubelet
from tests.plugin.daemon import BOTH, RTX_3090, serve

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def health(port: int, service: str) -> int:
    """As a probe asks."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        return int(check(health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True).status)


def test_it_lives_without_a_kubelet_and_is_ready_once_the_kubelet_watches(
    machine: Machine, short_dir: Path, port: int
) -> None:
    with serve(machine("two-rtx-3090"), short_dir, "--health", str(port)) as plugin:
        plugin.wait_for_line("waiting for the kubelet")
        assert (health(port, ""), health(port, REGISTERED)) == (SERVING, NOT_SERVING)
        with running_kubelet(short_dir):
            plugin.wait_for_line("registered, and watched")
            assert (health(port, ""), health(port, REGISTERED)) == (SERVING, SERVING)


def test_it_stays_ready_when_the_config_gives_a_resource_another_name(
    machine: Machine, kubelet: Kubelet, tmp_path: Path, port: int
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{}\n")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config, "--health", str(port)) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        new = tmp_path / "new.yaml"
        new.write_text('offer: [{vendor: "10de", pci_class: "03", resource: nvidia.com/pgpu}]')
        new.rename(config)
        plugin.wait_for_line("nvidia.com/pgpu: registered, and watched")
        assert health(port, REGISTERED) == SERVING


def test_a_node_without_anything_to_offer_is_ready(machine: Machine, kubelet: Kubelet, port: int) -> None:
    with serve(machine("virtual-machine-without-iommu"), kubelet.directory, "--health", str(port)):
        assert health(port, REGISTERED) == SERVING


def test_a_service_that_there_is_not_is_not_found(machine: Machine, kubelet: Kubelet, port: int) -> None:
    with (
        serve(machine("two-rtx-3090"), kubelet.directory, "--health", str(port)),
        pytest.raises(grpc.RpcError, match="expected '' or 'registered'"),
    ):
        health(port, "gpu")
