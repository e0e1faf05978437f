"""What the kubelet is told of the node while `gpu-plugin serve` runs, and what the daemon tells of itself."""

import signal
import socket
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest

from pci.resource import NodeDevice
from plugin.device_plugin.monitoring import LIVE, READY
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.conftest import Machine
from tests.kernel import bind, make_nodes, plug, unplug
from tests.kubelet import Kubelet
from tests.plugin.daemon import BOTH, ITSELF, RTX_3090, serve, status, wait_until
from tests.processes import children, finished
from tests.waiting import allowed

KVM = "devices.gpu-launcher.dev/kvm"
POOL = "nvidia.com/pgpu"
FOREIGN = "devices.kubevirt.io/gpu"

#: No look but at what an event told.
BY_EVENTS = ("--rescan", "3600")


def health(kubelet: Kubelet, resource: str) -> Mapping[str, str]:
    endpoint = kubelet.endpoints.get(resource)
    return {} if endpoint is None else {device.ID: device.health for device in endpoint.devices.values()}


@pytest.fixture
def dev(kubelet: Kubelet, machine: Machine) -> Path:
    """What stands for /dev, of the machine with two cards."""
    return make_nodes(machine("two-rtx-3090"), kubelet.directory / "dev")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "config.yaml"
    path.parent.mkdir()
    path.write_text("{}\n")
    return path


# Lists.


def test_the_kubelet_may_ask_for_the_preferred_devices_and_need_not_call_before_a_start(
    machine: Machine, kubelet: Kubelet
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        options = kubelet.endpoints[RTX_3090].stub.GetDevicePluginOptions(api.Empty())
    assert (options.get_preferred_allocation_available, options.pre_start_required) == (True, False)


def test_what_read_the_command_line_and_the_config_stays_in_nobodys_memory(
    machine: Machine, kubelet: Kubelet, config: Path
) -> None:
    config.write_text("node_devices: {kvm: 1}\n")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config, within=ITSELF) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        processes = [plugin.process.pid, *children(plugin.process.pid)]
        assert len(processes) == 2, "the daemon, and what reads for it"
        for process in processes:
            assert "pydantic_core" not in Path(f"/proc/{process}/maps").read_text()


def test_a_change_is_one_more_list_of_everything_in_which_one_device_differs(
    machine: Machine, kubelet: Kubelet, dev: Path
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, *BY_EVENTS):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        for number, healths in enumerate([["Unhealthy", "Healthy"], ["Healthy", "Healthy"]], start=2):
            (dev / "vfio/11").unlink() if number == 2 else (dev / "vfio/11").touch()
            kubelet.wait_until(lambda number=number: kubelet.endpoints[RTX_3090].lists == number)  # type: ignore[misc]
            assert health(kubelet, RTX_3090) == dict(zip(BOTH, healths, strict=True))


def test_a_list_has_each_device_once_in_order_and_fits_a_message(
    machine: Machine, kubelet: Kubelet, dev: Path, config: Path
) -> None:
    (dev / "kvm").touch()
    config.write_text("node_devices: {kvm: 10000}\n")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH and len(kubelet.healthy(KVM)) == 10_000)
        lists = {
            resource: next(kubelet.endpoints[resource].stub.ListAndWatch(api.Empty())) for resource in (RTX_3090, KVM)
        }
    assert [device.ID for device in lists[RTX_3090].devices] == list(BOTH)
    assert len({device.ID for device in lists[KVM].devices}) == len(lists[KVM].devices) == 10_000
    assert lists[KVM].ByteSize() < 4 << 20  # the kubelet's gRPC takes no more


@pytest.mark.parametrize("node", ["vfio/vfio", "vfio"])
def test_without_vfio_every_card_is_unhealthy_until_it_is_there_again(
    machine: Machine, kubelet: Kubelet, dev: Path, node: str
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, *BY_EVENTS) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        (dev / node).rename(dev / "away")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ())
        assert set(health(kubelet, RTX_3090)) == set(BOTH)
        plugin.wait_for_line("has no way into VFIO")
        (dev / "away").rename(dev / node)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_function_s_own_node_counts_where_the_kernel_has_them(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys = copied_machine("two-rtx-3090")
    devices = make_nodes(sys, kubelet.directory / "dev", cdevs=True) / "vfio/devices"
    with serve(sys, kubelet.directory, *BY_EVENTS) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        (devices / "vfio1").unlink()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        plugin.wait_for_line("/dev/vfio/devices/vfio1 of 0000:01:00.1 does not exist")
        (devices / "vfio1").touch()
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_card_that_is_plugged_in_is_offered_and_one_that_is_taken_out_is_not(
    copied_machine: Machine, kubelet: Kubelet
) -> None:
    sys = copied_machine("two-rtx-3090")
    make_nodes(sys, kubelet.directory / "dev")
    functions = ("0000:01:00.0", "0000:01:00.1")
    for address in functions:
        unplug(sys, address)
    with serve(sys, kubelet.directory):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        for address in functions:
            plug(sys, address)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        for address in functions:
            unplug(sys, address)
        kubelet.wait_until(lambda: list(health(kubelet, RTX_3090)) == [BOTH[1]])
    assert len(kubelet.registrations) == 1


def test_a_card_that_is_plugged_in_under_a_colliding_name_is_withheld_and_the_rest_goes_on(
    copied_machine: Machine, kubelet: Kubelet, config: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    make_nodes(sys, kubelet.directory / "dev")
    config.write_text(
        "offer: [{address: '0000:e1:00.0', resource: a/b.c}, {address: '0000:01:00.0', resource: a.b/c}]\n"
    )
    functions = ("0000:01:00.0", "0000:01:00.1")
    for address in functions:
        unplug(sys, address)
    with serve(sys, kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy("a/b.c") == BOTH[1:])
        for address in functions:
            plug(sys, address)
        plugin.wait_for_line("0000:01:00.0 (GA102 [GeForce RTX 3090]) is not on offer: it cannot be told apart")
        # The look goes on: what happens to the others is seen.
        bind(sys, "0000:e1:00.1", "snd_hda_intel")
        kubelet.wait_until(lambda: health(kubelet, "a/b.c") == {"0000:e1:00.0": "Unhealthy"})
        assert "a.b/c" not in kubelet.endpoints
        for address in ("0000:e1:00.0", "0000:e1:00.1"):
            unplug(sys, address)
        kubelet.wait_until(lambda: kubelet.healthy("a.b/c") == BOTH[:1])
    with serve(sys, kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy("a.b/c") == BOTH[:1])
    for address in ("0000:e1:00.0", "0000:e1:00.1"):
        plug(sys, address)
    with serve(sys, kubelet.directory, "--config", config) as plugin:
        assert plugin.end(30) == 1, "at a start the config has to be mended first"
        assert "resources a.b/c and a/b.c: would share the variable PCI_RESOURCE_A_B_C" in plugin.log[-1]


# The config.


def test_a_config_that_adds_or_drops_a_resource_leaves_the_others_alone(
    machine: Machine, kubelet: Kubelet, dev: Path, config: Path
) -> None:
    (dev / "kvm").touch()
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        config.write_text("node_devices: {kvm: 3}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ("kvm-0", "kvm-1", "kvm-2"))
        config.write_text("node_devices: {kvm: 1}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ("kvm-0",))
        config.write_text("{}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: not kubelet.endpoints[KVM].connected)
        assert health(kubelet, KVM) == {}
        wait_until(lambda: len(list(kubelet.directory.glob("gpu-plugin-*"))) == 1)
        assert kubelet.healthy(RTX_3090) == BOTH
        config.write_text("node_devices: {kvm: 2}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ("kvm-0", "kvm-1"))
    assert [request.resource_name for request in kubelet.registrations] == [RTX_3090, KVM, KVM]
    assert not any("Traceback" in line for line in plugin.log)


def test_a_configmap_that_changes_is_read_without_a_signal(machine: Machine, kubelet: Kubelet, config: Path) -> None:
    """The kubelet puts a ConfigMap's files into a new directory, and lets a link of one name lead there."""
    texts = {"1": "{}\n", "2": f'offer: [{{vendor: "10de", resource: {POOL}}}]\n'}
    config.unlink()
    for name, text in texts.items():
        (config.parent / name).mkdir()
        (config.parent / name / config.name).write_text(text)
    data = config.parent / "..data"
    data.symlink_to("1")
    config.symlink_to(f"..data/{config.name}")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        new = config.parent / "..data_tmp"
        new.symlink_to("2")
        new.replace(data)
        kubelet.wait_until(lambda: kubelet.healthy(POOL) == BOTH and kubelet.healthy(RTX_3090) == ())


def test_a_config_that_is_written_slowly_counts_when_it_is_whole(
    machine: Machine, kubelet: Kubelet, config: Path
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        with config.open("w") as file:
            file.write("offer: [")
            file.flush()
            plugin.send(signal.SIGHUP)
            plugin.wait_for_line("stays as it was")
            file.write(f'{{vendor: "10de", resource: {POOL}}}, {{device: "10de:2204", withhold: true}}]\n')
        kubelet.wait_until(lambda: kubelet.healthy(POOL) == BOTH)
        assert any("offer.1: never counts, as offer.0 fits" in line for line in plugin.log)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("offer: [", "is not YAML"),
        ("offers: []", "offers: is no word of the config; did you mean offer?"),
        ('offer: [{address: "0000:01:00.0", resource: A.b/c}]', "is not an extended resource name"),
        (
            "offer: [{address: '0000:01:00.0', resource: a.b/c}, {address: '0000:e1:00.0', resource: a/b.c}]",
            "would share the variable PCI_RESOURCE_A_B_C",
        ),
        (None, "cannot be read"),
    ],
)
def test_a_broken_config_leaves_the_one_before_in_force_and_says_so(
    machine: Machine, kubelet: Kubelet, config: Path, text: str | None, problem: str
) -> None:
    config.write_text(f'offer: [{{vendor: "10de", resource: {POOL}}}]\n')
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(POOL) == BOTH)
        if text is None:
            config.unlink()
        else:
            config.write_text(text)
            plugin.send(signal.SIGHUP)
        plugin.wait_for_line("the config stays as it was")
        assert any("stays as it was" in line and problem in line for line in plugin.log)
        assert kubelet.healthy(POOL) == BOTH
        config.write_text("{}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_resource_whose_last_device_goes_stays_at_none_also_after_a_reload(
    copied_machine: Machine, kubelet: Kubelet, config: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, kubelet.directory / "dev")
    (dev / "kvm").touch()
    with serve(sys, kubelet.directory, "--config", config) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        config.write_text("node_devices: {kvm: 1}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ("kvm-0",))
        for address in BOTH:
            bind(sys, address, "nouveau")
        kubelet.wait_until(lambda: health(kubelet, RTX_3090) == {})
        for address in BOTH:
            bind(sys, address, "vfio-pci")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
    assert [request.resource_name for request in kubelet.registrations] == [RTX_3090, KVM]


# Pods.


def test_a_card_that_another_plugin_gave_out_is_unhealthy_until_that_pod_ends(
    machine: Machine, kubelet: Kubelet
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.give("vms/other", FOREIGN, ["11"])
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        plugin.wait_for_line(f"is in use by pod vms/other, which has it as {FOREIGN}")
        with pytest.raises(grpc.RpcError, match="cannot be handed out: it is in use by pod vms/other"):
            kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"])
        kubelet.free("vms/other")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_card_that_another_plugin_gave_out_before_the_start_is_never_offered(
    machine: Machine, kubelet: Kubelet
) -> None:
    kubelet.give("vms/other", FOREIGN, ["0000:01:00.1"])
    seen: set[tuple[str, ...]] = set()

    def remember() -> bool:
        seen.add(kubelet.healthy(RTX_3090))
        return kubelet.healthy(RTX_3090) == BOTH[1:]

    with serve(machine("two-rtx-3090"), kubelet.directory):
        kubelet.wait_until(remember)
    assert seen == {(), BOTH[1:]}


def test_under_another_name_a_card_that_a_pod_has_is_never_offered(
    machine: Machine, kubelet: Kubelet, config: Path
) -> None:
    seen: set[tuple[str, ...]] = set()

    def remember() -> bool:
        seen.add(kubelet.healthy(POOL))
        return kubelet.healthy(POOL) == BOTH[1:]

    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config, *BY_EVENTS) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"], "vms/ours")
        assert kubelet.healthy(RTX_3090) == BOTH
        config.write_text(f'offer: [{{vendor: "10de", resource: {POOL}}}]\n')
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(remember)
        plugin.wait_for_line(f"is in use by pod vms/ours, which has it as {RTX_3090}")
    assert seen == {(), BOTH[1:]}


def test_where_nobody_says_who_has_what_the_log_does(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--pod-resources", "/nowhere/kubelet.sock") as plugin:
        plugin.wait_for_line("what other plugins gave out is not seen: /nowhere/kubelet.sock: does not exist")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


# Node devices.


def test_a_node_device_is_shared_by_as_many_as_the_config_says_while_it_is_there(
    machine: Machine, kubelet: Kubelet, dev: Path, config: Path
) -> None:
    config.write_text("node_devices: {kvm: 3, tun: 2, sev: 1}\n")
    (dev / "kvm").touch()
    (dev / "sev").touch()
    tun, sev = NodeDevice.TUN.resource(), NodeDevice.SEV.resource()
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config, *BY_EVENTS):
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ("kvm-0", "kvm-1", "kvm-2"))
        kubelet.wait_until(lambda: health(kubelet, tun) == {"tun-0": "Unhealthy", "tun-1": "Unhealthy"})
        for _ in range(3):
            answer = kubelet.allocate(KVM, 1)
            (node,) = answer.devices
            assert (node.host_path, node.container_path, node.permissions) == ("/dev/kvm", "/dev/kvm", "rw")
            assert dict(answer.envs) == {}
        kubelet.wait_until(lambda: kubelet.healthy(sev) == ("sev-0",))
        assert [node.host_path for node in kubelet.allocate(sev, 1).devices] == ["/dev/sev"]
        (dev / "net").mkdir()
        (dev / "net/tun").touch()
        kubelet.wait_until(lambda: kubelet.healthy(tun) == ("tun-0", "tun-1"))
        (dev / "kvm").unlink()
        kubelet.wait_until(lambda: kubelet.healthy(KVM) == ())
        with pytest.raises(grpc.RpcError, match="/dev/kvm does not exist on this node"):
            kubelet.allocate_devices(KVM, ["kvm-0"])
        with pytest.raises(grpc.RpcError, match="tun-2: is not a device of"):
            kubelet.allocate_devices(tun, ["tun-2"])


# Watching it.


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=allowed(10)) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_say_what_is_offered_who_has_it_and_what_was_asked(
    copied_machine: Machine, kubelet: Kubelet, port: int
) -> None:
    sys = copied_machine("two-rtx-3090")
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    with serve(sys, kubelet.directory, "--metrics", str(port), "--own-node", "gpu-1") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH[1:])
        plugin.wait_for_line("watched by the kubelet")
        kubelet.allocate(RTX_3090, 1, "vms/ours")
        with pytest.raises(grpc.RpcError):
            kubelet.allocate_devices(RTX_3090, ["0000:01:00.0"])
        labels = f'claim="",device="0000:e1:00.0",namespace="vms",node="gpu-1",pod="ours",resource="{RTX_3090}"'
        in_use = f"gpu_plugin_device_in_use{{{labels}}}"
        wait_until(lambda: in_use in metrics(port))
        found = metrics(port)
    (unhealthy,) = (name for name in found if name.startswith('gpu_plugin_device{device="0000:01:00.0"'))
    assert 'state="unhealthy"' in unhealthy
    assert "0000:01:00.1 (audio) is bound to snd_hda_intel" in unhealthy
    (healthy,) = (name for name in found if name.startswith('gpu_plugin_device{device="0000:e1:00.0"'))
    assert (
        'node="gpu-1",numa_node="1",reason="",resource="nvidia.com/GA102_GEFORCE_RTX_3090",state="healthy"' in healthy
    )
    assert found[f'gpu_plugin_registered{{resource="{RTX_3090}"}}'] == 1
    assert found[f'gpu_plugin_registrations_total{{resource="{RTX_3090}"}}'] == 1
    assert found[f'gpu_plugin_allocations_total{{outcome="given",resource="{RTX_3090}"}}'] == 1
    assert found[f'gpu_plugin_allocations_total{{outcome="refused",resource="{RTX_3090}"}}'] == 1
    assert (found["gpu_plugin_sysfs_faults"], found['gpu_plugin_sees_pods{node="gpu-1"}']) == (0, 1)
    assert found[f'gpu_plugin_devices{{node="gpu-1",resource="{RTX_3090}",state="in use"}}'] == 1
    assert found[f'gpu_plugin_devices{{node="gpu-1",resource="{RTX_3090}",state="unhealthy"}}'] == 1
    assert found[f'gpu_plugin_devices{{node="gpu-1",resource="{RTX_3090}",state="free"}}'] == 0
    assert found[f'gpu_plugin_build_info{{version="{version("gpu-launcher")}"}}'] == 1
    looks = found["gpu_plugin_look_duration_seconds_count"]
    assert found['gpu_plugin_look_duration_seconds_bucket{le="60.0"}'] == looks > 0
    assert 0 < found["gpu_plugin_look_duration_seconds_sum"] < 60 * looks
    assert [name for name in found if "bind_duration" in name] == []


def test_each_stream_that_the_kubelet_opens_is_counted(machine: Machine, kubelet: Kubelet, port: int) -> None:
    streams = f'gpu_plugin_streams_total{{resource="{RTX_3090}"}}'
    with serve(machine("two-rtx-3090"), kubelet.directory, "--metrics", str(port)) as plugin:
        plugin.wait_for_line("watched by the kubelet")
        assert metrics(port)[streams] == 1
        kubelet.restart()
        wait_until(lambda: metrics(port)[streams] == 2)


def test_health_tells_the_process_from_its_registrations(
    machine: Machine, kubelet: Kubelet, dev: Path, config: Path, port: int
) -> None:
    (dev / "kvm").touch()
    config.write_text("node_devices: {kvm: 1}\n")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--health", str(port), "--config", config) as plugin:
        wait_until(lambda: status(port, READY) == 200)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH and kubelet.healthy(KVM) == ("kvm-0",))
        config.write_text("{}\n")
        plugin.send(signal.SIGHUP)
        kubelet.wait_until(lambda: not kubelet.endpoints[KVM].connected)
        wait_until(lambda: status(port, READY) == 200)
        kubelet.stop()
        wait_until(lambda: status(port, READY) == 503)
        assert status(port, LIVE) == 200
        kubelet.start()
        wait_until(lambda: status(port, READY) == 200)


@pytest.mark.parametrize("option", ["--metrics", "--health"])
def test_a_port_that_is_taken_is_refused_by_name(machine: Machine, short_dir: Path, option: str) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ("--sysfs", machine("two-rtx-3090"), "--dev", short_dir, "--kubelet-dir", short_dir)
        result = finished("gpu-plugin", "serve", *arguments, option, port)
    assert result.returncode == 1
    assert f"{option} {port}: cannot serve" in result.stderr
    assert "name another port" in result.stderr
    assert "Traceback" not in result.stderr
