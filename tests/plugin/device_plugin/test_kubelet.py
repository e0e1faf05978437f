"""The plugin as a process beside a kubelet's stand-in, over real sockets."""

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import grpc
import pytest

from plugin.kubelet_api.pluginregistration_v1.registration_pb2 import InfoRequest
from plugin.kubelet_api.pluginregistration_v1.registration_pb2_grpc import RegistrationStub
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc
from tests.conftest import Machine
from tests.kernel import bind, make_nodes, unplug
from tests.kubelet import Kubelet, running_kubelet
from tests.plugin.daemon import BOTH, RTX_3090, serve, wait_until
from tests.processes import Program
from tests.waiting import allowed


def test_every_card_is_registered_with_its_numa_node(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
    devices = kubelet.endpoints[RTX_3090].devices
    assert [[node.ID for node in devices[ID].topology.nodes] for ID in BOTH] == [[0], [1]]


def test_a_card_whose_node_is_unknown_has_no_topology(machine: Machine, kubelet: Kubelet) -> None:
    resource = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
    with serve(machine("rtx-2060"), kubelet.directory):
        kubelet.wait_until(lambda: bool(kubelet.healthy(resource)))
    assert not kubelet.endpoints[resource].devices["0000:01:00.0"].HasField("topology")


def test_allocate_answers_with_addresses_and_nodes(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        answer = kubelet.allocate(RTX_3090, 2)
    assert dict(answer.envs) == {"PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090": "0000:01:00.0,0000:e1:00.0"}
    assert [(node.host_path, node.container_path, node.permissions) for node in answer.devices] == [
        ("/dev/vfio/vfio", "/dev/vfio/vfio", "rw"),
        ("/dev/vfio/11", "/dev/vfio/11", "rw"),
        ("/dev/vfio/71", "/dev/vfio/71", "rw"),
    ]


def test_a_card_rebound_since_the_last_list_is_refused_by_name(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys_dir = copied_machine("two-rtx-3090")
    with serve(sys_dir, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        bind(sys_dir, "0000:01:00.1", "snd_hda_intel")
        with pytest.raises(grpc.RpcError) as error:
            kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"])
        assert isinstance(error.value, grpc.Call)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "0000:01:00.1 (audio) is bound to snd_hda_intel" in str(error.value.details())
        # The refusal was news: the list goes down at once, not at the next look.
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))


def test_each_container_of_one_call_has_its_own_answer(machine: Machine, kubelet: Kubelet) -> None:
    """NVIDIA's plugin lists the first container's devices for the second, too."""
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        containers = [api.ContainerAllocateRequest(devices_ids=[ID]) for ID in reversed(BOTH)]
        stub = kubelet.endpoints[RTX_3090].stub
        answer = stub.Allocate(api.AllocateRequest(container_requests=containers))
        nothing = stub.Allocate(api.AllocateRequest())
    assert [list(one.envs.values()) for one in answer.container_responses] == [[ID] for ID in reversed(BOTH)]
    assert [[node.host_path for node in one.devices] for one in answer.container_responses] == [
        ["/dev/vfio/vfio", "/dev/vfio/71"],
        ["/dev/vfio/vfio", "/dev/vfio/11"],
    ]
    assert list(nothing.container_responses) == []


def _half_gone(sys: Path) -> None:
    """Its companion has left the group, and nothing can be read of it."""
    (sys / "bus/pci/devices/0000:01:00.0/uevent").write_text("?\n")
    unplug(sys, "0000:01:00.1")


def _unplug(sys: Path) -> None:
    for number in (0, 1):
        unplug(sys, f"0000:01:00.{number}")


def _swap(sys: Path) -> None:
    """Another vendor's card in its place, which nothing gave to vfio."""
    for number in (0, 1):
        uevent = sys / f"bus/pci/devices/0000:01:00.{number}/uevent"
        uevent.write_text(uevent.read_text().replace("PCI_ID=10DE", "PCI_ID=1002"))
        bind(sys, f"0000:01:00.{number}", None)


def _regroup(sys: Path) -> None:
    groups = sys / "kernel/iommu_groups"
    (groups / "11").rename(groups / "12")
    for number in (0, 1):
        link = (sys / f"bus/pci/devices/0000:01:00.{number}").resolve() / "iommu_group"
        target = link.readlink()
        link.unlink()
        link.symlink_to(target.with_name("12"))


@pytest.mark.parametrize(
    ("happens", "problem"),
    [
        (_half_gone, "0000:01:00.0: is not a device of"),
        (_unplug, "0000:01:00.0: is not a device of"),
        (_swap, "0000:01:00.0: is not a device of"),
        (_regroup, "it has lost its node: /dev/vfio/12 does not exist"),
    ],
)
def test_a_card_that_is_another_one_since_the_last_look_is_refused(
    copied_machine: Machine, kubelet: Kubelet, happens: Callable[[Path], None], problem: str
) -> None:
    sys = copied_machine("two-rtx-3090")
    with serve(sys, kubelet.directory, "--rescan", "3600"):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        happens(sys)
        with pytest.raises(grpc.RpcError, match=re.escape(problem)):
            kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"])


def test_capacity_follows_the_node_both_ways(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys_dir = copied_machine("two-rtx-3090")
    with serve(sys_dir, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        bind(sys_dir, "0000:01:00.1", "snd_hda_intel")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
        bind(sys_dir, "0000:01:00.1", "vfio-pci")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


#: Of a start, in their order: what can be seen of it from outside.
MOMENTS: Mapping[str, Callable[[Kubelet, Program], object]] = {
    "it is Python": lambda kubelet, plugin: True,
    "it has said something": lambda kubelet, plugin: plugin.log,
    "it has a socket": lambda kubelet, plugin: list(kubelet.directory.glob("gpu-plugin-*")),
    "it has asked the kubelet": lambda kubelet, plugin: kubelet.registrations,
    "the kubelet asks it": lambda kubelet, plugin: RTX_3090 in kubelet.endpoints,
    "the kubelet has its list": lambda kubelet, plugin: kubelet.healthy(RTX_3090) == BOTH,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_and_started_again_the_resource_works(
    machine: Machine, kubelet: Kubelet, moment: str
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory) as first:
        wait_until(lambda: MOMENTS[moment](kubelet, first))
        first.kill()
    kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ())
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        assert len(kubelet.allocate(RTX_3090, 2).devices) == 3
        # The dead one's socket is gone too.
        assert [path.name for path in kubelet.directory.glob("gpu-plugin-*")] == [kubelet.endpoints[RTX_3090].name]


def test_a_restarted_kubelet_gets_the_resource_again_on_a_new_socket(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.restart()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
    assert len({request.endpoint for request in kubelet.registrations}) == len(kubelet.registrations) == 2


def test_a_socket_that_somebody_removed_is_made_anew(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        (kubelet.directory / kubelet.registrations[0].endpoint).unlink()
        kubelet.wait_until(lambda: len(kubelet.registrations) == 2 and kubelet.healthy(RTX_3090) == BOTH)


def test_a_kubelet_that_watches_no_more_is_registered_with_again(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.endpoints[RTX_3090].channel.close()
        kubelet.wait_until(lambda: len(kubelet.registrations) == 2 and kubelet.healthy(RTX_3090) == BOTH)


def test_a_resource_that_is_lost_again_and_again_is_registered_ever_more_slowly(
    machine: Machine, kubelet: Kubelet
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory) as plugin:
        for _ in range(5):
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
            kubelet.endpoints[RTX_3090].channel.close()
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ())
        plugin.wait_for_line("the kubelet watches no more")
    (line,) = (line for line in plugin.log if "the kubelet watches no more" in line)
    pause = re.search(r"trying again in ([\d.]+) s", line)
    assert pause is not None
    assert float(pause[1]) > 0.1


@pytest.mark.parametrize("before_1_37", [False, True])
def test_a_socket_that_is_registered_twice_goes_on_working(
    copied_machine: Machine, short_dir: Path, before_1_37: bool
) -> None:
    """Kubelets before 1.37 watch it twice, and count on one of the streams."""
    sys = copied_machine("two-rtx-3090")
    with running_kubelet(short_dir, before_1_37=before_1_37) as kubelet, serve(sys, short_dir):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        with grpc.insecure_channel(f"unix:{short_dir}/kubelet.sock") as channel:
            deviceplugin_pb2_grpc.RegistrationStub(channel).Register(kubelet.registrations[0], timeout=allowed(10))
        bind(sys, "0000:01:00.1", "snd_hda_intel")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        assert kubelet.allocate(RTX_3090, 1).envs
        kubelet.endpoints[RTX_3090].channel.close()
        bind(sys, "0000:01:00.1", "vfio-pci")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH, seconds=5)


@pytest.mark.parametrize("before_1_37", [False, True])
@pytest.mark.parametrize("in_registry", [False, True])
def test_two_plugins_whose_stream_is_lost_are_both_back_within_seconds_and_stay(
    machine: Machine, short_dir: Path, registry: Path, before_1_37: bool, in_registry: bool
) -> None:
    sys = machine("two-rtx-3090")
    there = ("--plugins-registry", registry) if in_registry else ()
    sockets = registry if in_registry else short_dir
    with (
        running_kubelet(short_dir, registry=registry if in_registry else None, before_1_37=before_1_37) as kubelet,
        serve(sys, short_dir, *there) as one,
        serve(sys, short_dir, *there) as other,
    ):
        for plugin in (one, other):
            plugin.wait_for_line("watched by the kubelet")
        kubelet.endpoints[RTX_3090].channel.close()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ())
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH, seconds=5)

        def stay() -> bool:
            before = sorted(sockets.glob("gpu-plugin-*.sock"))
            time.sleep(2)  # more than any of the two waits before it registers again
            return len(before) == 2 and sorted(sockets.glob("gpu-plugin-*.sock")) == before

        wait_until(stay, seconds=10)
        assert kubelet.healthy(RTX_3090) == BOTH


def test_without_a_look_at_the_node_nothing_is_handed_out(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys_dir = copied_machine("two-rtx-3090")
    with serve(sys_dir, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        sys_dir.rename(sys_dir.with_name("gone"))
        with pytest.raises(grpc.RpcError, match="expected a sysfs tree"):
            kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"])


def test_only_dead_sockets_of_ours_are_removed(machine: Machine, kubelet: Kubelet) -> None:
    (kubelet.directory / "gpu-plugin-mine.sock").write_text("not a socket")
    dead, living = (kubelet.directory / f"gpu-plugin-{name}.sock" for name in ("dead", "living"))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(dead))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(living))
        other.listen()
        with serve(machine("two-rtx-3090"), kubelet.directory):
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        assert living.is_socket()
    assert not dead.exists()
    assert (kubelet.directory / "gpu-plugin-mine.sock").read_text() == "not a socket"


def _pauses(log: Iterable[str]) -> list[float]:
    return [float(found[1]) for line in list(log) if (found := re.search(r"trying again in ([0-9.]+) s", line))]


def test_a_refused_registration_is_tried_again_ever_more_slowly_and_stops_no_other(
    machine: Machine, kubelet: Kubelet, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("node_devices: {kvm: 1}\n")
    make_nodes(machine("two-rtx-3090"), kubelet.directory / "dev")
    (kubelet.directory / "dev/kvm").touch()
    kubelet.refuses.add(RTX_3090)
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config) as plugin:
        plugin.wait_for_line(f"{RTX_3090}: not registered, trying again in")
        assert any("not this one" in line for line in plugin.log)
        assert kubelet.healthy("devices.gpu-launcher.dev/kvm") == ("kvm-0",)
        # Each pause is up to twice the one before, and less by chance: of two, the longer is sure.
        wait_until(lambda: len(_pauses(plugin.log)) >= 3)
        assert _pauses(plugin.log)[0] < _pauses(plugin.log)[2] <= 10
        kubelet.refuses.clear()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


@pytest.mark.parametrize("in_registry", [False, True])
def test_a_kubelet_that_takes_the_registration_and_does_not_watch_is_registered_with_again(
    machine: Machine, short_dir: Path, registry: Path, in_registry: bool
) -> None:
    there = ("--plugins-registry", registry) if in_registry else ()
    with running_kubelet(short_dir, registry=registry if in_registry else None) as kubelet:
        kubelet.ignores.add(RTX_3090)
        with serve(machine("two-rtx-3090"), short_dir, *there) as plugin:
            kubelet.wait_until(lambda: RTX_3090 in kubelet.endpoints)
            first = kubelet.endpoints[RTX_3090].name
            kubelet.ignores.clear()
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
            assert any("the kubelet does not watch" in line for line in plugin.log)
            assert kubelet.endpoints[RTX_3090].name != first


def test_a_kubelet_that_restarts_between_register_and_watch_is_found_at_once(
    machine: Machine, kubelet: Kubelet
) -> None:
    kubelet.ignores.add(RTX_3090)
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: len(kubelet.registrations) == 1)
        kubelet.ignores.clear()
        kubelet.restart()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH, seconds=5)


def test_a_kubelet_that_was_killed_and_comes_back_after_a_while_is_registered_with_at_once(
    machine: Machine, kubelet: Kubelet
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.stop(killed=True)  # its socket stays, and nobody answers
        plugin.wait_for_line("not registered, trying again in")
        kubelet.start()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH, seconds=5)


@pytest.mark.parametrize("before_1_37", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_rolling_update_leaves_the_resource_with_the_plugin_that_stays(
    machine: Machine, short_dir: Path, before_1_37: bool, killed: bool
) -> None:
    sys = machine("two-rtx-3090")
    with running_kubelet(short_dir, before_1_37=before_1_37) as kubelet, serve(sys, short_dir) as old:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        with serve(sys, short_dir) as new:
            new.wait_for_line("watched by the kubelet")
            assert kubelet.healthy(RTX_3090) == BOTH
            if killed:
                old.kill()
            else:
                old.send(signal.SIGTERM)
                assert old.end(10) == 0
            kubelet.wait_until(lambda: len(kubelet.registrations) == 3 and kubelet.healthy(RTX_3090) == BOTH)
            assert kubelet.allocate(RTX_3090, 2).envs


def test_of_a_plugin_that_was_killed_no_socket_is_left_also_of_what_only_it_served(
    machine: Machine, kubelet: Kubelet, tmp_path: Path
) -> None:
    sys = machine("two-rtx-3090")
    config = tmp_path / "config.yaml"
    config.write_text("node_devices: {kvm: 1}\n")
    with serve(sys, kubelet.directory, "--config", config) as old:
        kubelet.wait_until(lambda: {RTX_3090, "devices.gpu-launcher.dev/kvm"} <= kubelet.endpoints.keys())
        with serve(sys, kubelet.directory) as new:
            new.wait_for_line("watched by the kubelet")
            assert len(list(kubelet.directory.glob("gpu-plugin-*"))) == 3
            old.kill()
            wait_until(lambda: len(list(kubelet.directory.glob("gpu-plugin-*"))) == 1)


def test_sigterm_does_not_wait_for_a_kubelet_that_does_not_answer(machine: Machine, short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_dir / "kubelet.sock"))
        silent.listen()
        with serve(machine("two-rtx-3090"), short_dir) as plugin:
            wait_until(lambda: list(short_dir.glob("gpu-plugin-*")))
            plugin.send(signal.SIGTERM)
            assert plugin.end(5) == 0
    assert list(short_dir.glob("gpu-plugin-*")) == []


@pytest.fixture
def registry(short_dir: Path) -> Path:
    directory = short_dir / "plugins_registry"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("before_1_37", [False, True])
def test_in_plugins_registry_the_kubelet_finds_the_plugin_before_and_after_its_restart(
    machine: Machine, short_dir: Path, registry: Path, before_1_37: bool
) -> None:
    with (
        running_kubelet(short_dir, registry=registry, before_1_37=before_1_37) as kubelet,
        serve(machine("two-rtx-3090"), short_dir, "--plugins-registry", registry),
    ):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        assert len(kubelet.allocate(RTX_3090, 2).devices) == 3
        kubelet.restart()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
    assert kubelet.registrations == []
    assert list(short_dir.glob("gpu-plugin-*")) == []


def test_in_plugins_registry_it_says_what_it_is(machine: Machine, short_dir: Path, registry: Path) -> None:
    with serve(machine("two-rtx-3090"), short_dir, "--plugins-registry", registry):
        wait_until(lambda: list(registry.glob("gpu-plugin-*.sock")))
        (path,) = registry.iterdir()
        with grpc.insecure_channel(f"unix:{path}") as channel:
            info = RegistrationStub(channel).GetInfo(InfoRequest(), wait_for_ready=True, timeout=allowed(10))
    assert (info.type, info.name, info.endpoint) == ("DevicePlugin", RTX_3090, str(path))
    assert list(info.supported_versions) == ["v1beta1"]


def test_in_plugins_registry_a_refusal_is_said_and_tried_again(
    machine: Machine, short_dir: Path, registry: Path
) -> None:
    with running_kubelet(short_dir, registry=registry) as kubelet:
        kubelet.refuses.add(RTX_3090)
        with serve(machine("two-rtx-3090"), short_dir, "--plugins-registry", registry) as plugin:
            plugin.wait_for_line(f"{RTX_3090}: the kubelet refused the registration: not this one")
            kubelet.refuses.clear()
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_in_plugins_registry_a_socket_that_is_removed_before_the_kubelet_comes_is_made_anew(
    machine: Machine, short_dir: Path, registry: Path
) -> None:
    with serve(machine("two-rtx-3090"), short_dir, "--plugins-registry", registry):
        wait_until(lambda: list(registry.iterdir()))
        (first,) = registry.iterdir()
        first.unlink()
        wait_until(lambda: list(registry.iterdir()))
        with running_kubelet(short_dir, registry=registry) as kubelet:
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_kubelet_that_comes_later_is_waited_for(machine: Machine, short_dir: Path) -> None:
    with serve(machine("two-rtx-3090"), short_dir) as plugin:
        plugin.wait_for_line("waiting for the kubelet: ")
        assert plugin.process.poll() is None
        with running_kubelet(short_dir) as kubelet:
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_sigterm_ends_with_an_empty_list_no_socket_and_0(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        plugin.send(signal.SIGTERM)
        assert plugin.end(10) == 0
        kubelet.wait_until(lambda: not kubelet.endpoints[RTX_3090].connected)
    assert kubelet.endpoints[RTX_3090].devices == {}
    assert list(kubelet.directory.glob("gpu-plugin-*")) == []
    assert not any("Traceback" in line for line in plugin.log)


def test_the_log_says_what_is_offered_and_why_not(machine: Machine, kubelet: Kubelet) -> None:
    resource = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
    with serve(machine("rtx-2060"), kubelet.directory, "--log-format=json") as plugin:
        kubelet.wait_until(lambda: bool(kubelet.healthy(resource)))
        plugin.wait_for_line("is on offer as")
    lines = [json.loads(line) for line in plugin.log]
    offered = next(line for line in lines if line.get("devices") == ["0000:01:00.0"])
    assert (offered["level"], offered["resource"]) == ("INFO", resource)
    assert f"0000:01:00.0 (TU106 [GeForce RTX 2060 Rev. A]) is on offer as {resource}" == offered["message"]
    withheld = next(line for line in lines if line.get("device") == "0000:00:02.0")
    its_reason = "is the processor's own GPU, which no rule of the config asks for: is bound to i915"
    fix = "if a guest is to have it: gpu-plugin bind 0000:00:02.0"
    assert (withheld["level"], withheld["reason"]) == ("WARNING", f"{its_reason}; {fix}")
