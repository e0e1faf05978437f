"""As whom a pod runs, and what it may do."""

from pathlib import Path

import pytest

from tests.launcher.cases import VMS
from tests.launcher.pod.made import container_of, pod_of, written_vm
from tests.launcher.vms import RTX_2060

MEMLOCK = "--raise=memlock"
HAND_OVER = ["CHOWN", "SETGID", "SETUID"]


def test_a_vm_without_devices_runs_as_qemus_user_and_may_do_nothing(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    of_pod, of_container = pod_of(path)["spec"]["securityContext"], container_of(path)["securityContext"]
    assert (of_pod["runAsUser"], of_pod["runAsNonRoot"]) == (107, True)
    assert "sysctls" not in of_pod
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize(
    ("name", "more", "handed_over"),
    [
        (
            "one-gpu",
            ["SYS_RESOURCE"],
            ["--give=/dev/vfio", "--give=/dev/iommu", "--give=/dev/bus/usb", "--raise=memlock"],
        ),
        ("realtime", ["SYS_RESOURCE"], ["--raise=rtprio"]),
        ("sev", ["SYS_RESOURCE"], ["--give=/dev/sev", MEMLOCK]),
        ("snp", [], ["--give=/dev/sev"]),
        (
            "host-disk",
            [],
            ["--give=/var/run/kubevirt-private/vmi-disks/made/made.img"],
        ),
    ],
)
def test_whatever_is_roots_on_the_node_is_handed_over_by_a_container_that_starts_as_root(
    name: str, more: list[str], handed_over: list[str]
) -> None:
    pod = pod_of(VMS / f"{name}.yaml")["spec"]
    (container,) = pod["containers"]
    shared = [f"--give=/dev/{device}" for device in ("kvm", "vhost-net", "vhost-vsock")]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (0, False)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": [*HAND_OVER, *more]}
    assert sorted(container["command"][4:]) == sorted(["--user=107", *handed_over, *shared])


def test_a_disk_of_the_nodes_that_is_there_takes_no_root_and_stays_its_owners(tmp_path: Path) -> None:
    disk = "{name: d, hostDisk: {path: /data/d.img, type: Disk}}"
    vm = written_vm(tmp_path / "vm.yaml", spec=f"  volumes: [{disk}]\n")
    assert (pod_of(vm)["spec"]["securityContext"]["runAsUser"], container_of(vm)["command"][4:]) == (107, [])


def test_a_claim_takes_root_as_a_block_device_and_not_as_a_file(tmp_path: Path) -> None:
    vm = VMS / "claims.yaml"
    users = [pod_of(vm, block)["spec"]["securityContext"]["runAsUser"] for block in (frozenset(), frozenset({"claim"}))]
    assert users == [107, 0]


def test_disks_are_of_qemus_group_whoever_the_pod_runs_as(tmp_path: Path) -> None:
    for gpus in ([], [("gpu", RTX_2060)]):
        found = pod_of(written_vm(tmp_path / "vm.yaml", gpus=gpus))["spec"]["securityContext"]
        assert (found["runAsGroup"], found["fsGroup"]) == (107, 107)


def test_passt_locks_itself_up_which_the_runtimes_profiles_forbid() -> None:
    found = container_of(VMS / "devices-by-default.yaml")["securityContext"]
    assert (found["seccompProfile"], found["appArmorProfile"]) == ({"type": "Unconfined"}, {"type": "Unconfined"})


def test_nobody_gets_back_what_was_given_up() -> None:
    for name in ("devices-by-default", "one-gpu", "whole-machine"):
        assert container_of(VMS / f"{name}.yaml")["securityContext"]["allowPrivilegeEscalation"] is False


def test_memory_of_a_numa_node_is_bound_by_calls_that_the_runtimes_profile_forbids() -> None:
    for name in ("numa-passthrough", "topology-numa"):
        assert container_of(VMS / f"{name}.yaml")["securityContext"]["seccompProfile"] == {"type": "Unconfined"}


@pytest.mark.parametrize(
    ("ports", "names"),
    [
        ("", ["net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"]),
        (", ports: [{port: 22}, {port: 8080}]", ["net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"]),
        (", ports: [{port: 8080}]", ["net.ipv4.ping_group_range"]),
    ],
)
def test_low_ports_are_everybodys_in_the_pods_network_where_some_are_forwarded(
    tmp_path: Path, ports: str, names: list[str]
) -> None:
    path = written_vm(tmp_path / "vm.yaml", spec="  networks: [{name: default, pod: {}}]\n")
    interface = f"interfaces: [{{name: default, passt: {{}}{ports}}}]"
    path.write_text(path.read_text().replace("autoattachPodInterface: false", interface))
    assert [sysctl["name"] for sysctl in pod_of(path)["spec"]["securityContext"]["sysctls"]] == names


def test_a_name_that_kubernetes_would_expand_reaches_run_as_it_is(tmp_path: Path) -> None:
    """$(NAME) is the variable's value in a container's command, and $$ a $."""
    disk = "{name: d, hostDisk: {path: '/data/$(HOSTNAME) $$ $x.img', type: DiskOrCreate, capacity: 1Mi}}"
    command = container_of(written_vm(tmp_path / "vm.yaml", spec=f"  volumes: [{disk}]\n"))["command"]
    (given,) = (argument for argument in command if "vmi-disks" in argument)
    assert given == "--give=/var/run/kubevirt-private/vmi-disks/d/$$(HOSTNAME) $$$$ $$x.img"
    assert [argument for argument in command if "$" in argument.replace("$$", "")] == []
