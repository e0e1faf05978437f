"""What a cluster applies to run gpu-plugin: its files agree with each other, the program and docs/install.md."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from plugin.cards.names import PCI_IDS
from plugin.config_file import read_config
from plugin.device_plugin.monitoring import LIVE, READY
from tests.launcher.pod.made import metered_pod
from tests.processes import FIXTURES, ROOT

DEPLOY = ROOT / "deploy"
PLUGIN, BIND, EXAMPLE = DEPLOY / "plugin", DEPLOY / "plugin" / "components" / "bind", DEPLOY / "example"
VGPUS = DEPLOY / "plugin" / "components" / "vgpus"
SECCOMP = DEPLOY / "plugin" / "components" / "seccomp"
POD_MONITOR = DEPLOY / "plugin" / "components" / "pod-monitor"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PAGE = (ROOT / "docs/install.md").read_text()

#: Paths that a command may be told of without a mount: the container's own /sys, and what is in the image.
UNMOUNTED = {PurePosixPath("/sys"), PurePosixPath(str(PCI_IDS))}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@dataclass(frozen=True)
class Container:
    """A container of the DaemonSet, with the pod that it is in and the pod's volumes, the component's among them."""

    manifest: dict[str, Any]
    pod: dict[str, Any]
    volumes: dict[str, dict[str, Any]]

    @property
    def mounts(self) -> dict[PurePosixPath, dict[str, Any]]:
        return {PurePosixPath(mount["mountPath"]): mount for mount in self.manifest["volumeMounts"]}

    def parameters(self) -> dict[str, Any]:
        """What the program makes of the arguments; a usage error fails."""
        from typer.core import TyperGroup
        from typer.main import get_command

        from plugin.cli import command_line

        command, *arguments = self.manifest["args"]
        group = get_command(command_line([command]))
        assert isinstance(group, TyperGroup)
        return group.commands[command].make_context(command, arguments).params

    def paths(self) -> set[PurePosixPath]:
        """Every path that the command goes by, those of its defaults included."""
        parameters = self.parameters()
        if self.manifest["args"][0] == "serve" and parameters["node_name"] is None:
            del (
                parameters["dra_state"],
                parameters["cdi"],
                parameters["state"],
            )  # of the driver, which deploy/dra starts
        paths = {PurePosixPath(str(value)) for value in parameters.values() if str(value).startswith("/")}
        if self.manifest["args"][0] == "bind" or str(parameters["sysfs"]) != "/sys":
            beside = PurePosixPath(parameters["sysfs"]).parent
            paths |= {beside / "proc", beside / "lib/modules"}
        return paths

    def writable(self) -> set[str]:
        """What it can write to."""
        return {str(path) for path, mount in self.mounts.items() if not mount.get("readOnly")}


def _containers() -> dict[str, Container]:
    pod = read(PLUGIN / "daemonset.yaml")["spec"]["template"]["spec"]
    component = read(BIND / "daemonset.yaml")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in (*pod["volumes"], *component["volumes"])}
    assert len(volumes) == len(pod["volumes"]) + len(component["volumes"])
    return {
        manifest["name"]: Container(manifest, {**pod, **component}, volumes)
        for manifest in (*pod["containers"], *component["initContainers"])
    }


CONTAINERS = _containers()
SERVE, BINDER = CONTAINERS["gpu-plugin"], CONTAINERS["bind"]
each_container = pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)


@pytest.mark.parametrize(
    "directory", [PLUGIN, BIND, VGPUS, SECCOMP, POD_MONITOR, EXAMPLE], ids=lambda path: str(path.relative_to(DEPLOY))
)
def test_a_kustomization_names_every_manifest_beside_it_and_nothing_else(directory: Path) -> None:
    kustomization = read(directory / "kustomization.yaml")
    generated = [name for generator in kustomization.get("configMapGenerator", []) for name in generator["files"]]
    patches = [patch["path"] for patch in kustomization.get("patches", [])]
    named = {*kustomization.get("resources", []), *kustomization.get("components", []), *patches, *generated}
    assert all((directory / name).exists() for name in named)
    beside = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
    assert beside - {"vm.yaml"} == {name for name in named if name.endswith(".yaml")}


def test_the_version_is_the_projects_wherever_it_stands() -> None:
    for directory in (PLUGIN, BIND, VGPUS, SECCOMP):
        assert read(directory / "kustomization.yaml")["images"] == [{"name": "gpu-plugin", "newTag": VERSION}]


@each_container
def test_a_path_that_the_command_goes_by_is_mounted_and_nothing_else_is(container: Container) -> None:
    paths, mounts = container.paths() - UNMOUNTED, set(container.mounts)
    assert not {path for path in paths if not {path, *path.parents} & mounts}
    # A mount is such a path, or holds it, or lies in it over what is not to be seen or written there.
    used = {near for path in paths for near in (path, *path.parents)}
    idle = {path for path in mounts if path not in used and not {*path.parents} & paths}
    assert idle <= {PurePosixPath("/tmp")}  # where people tell `gpu-plugin record` to write


def test_the_plugin_has_no_privilege_but_that_its_user_is_the_kubelets() -> None:
    security = SERVE.manifest["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (security["runAsUser"], security["allowPrivilegeEscalation"]) == (0, False)
    assert not {"privileged", "appArmorProfile", "procMount"} & set(security)
    assert SERVE.writable() == {"/tmp", "/var/lib/kubelet/device-plugins"}
    assert SERVE.volumes["tmp"] == {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}


def test_the_binder_may_look_at_processes_and_write_where_drivers_are_bound() -> None:
    security = BINDER.manifest["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}
    assert "privileged" not in security
    assert BINDER.writable() == {"/host/sys/bus/pci", "/host/sys/devices", "/var/lib/gpu-plugin"}


def test_what_cuts_cards_has_each_path_that_it_goes_by_and_each_is_explained() -> None:
    component = read(VGPUS / "daemonset.yaml")["spec"]["template"]["spec"]
    (manifest,) = component["initContainers"]
    volumes = SERVE.volumes | {volume["name"]: volume for volume in component["volumes"]}
    container = Container(manifest, component, volumes)
    parameters = container.parameters()
    script = PurePosixPath(parameters["sriov_manage"].split()[1])
    assert parameters["nvidia_smi"].split()[:2] == parameters["sriov_manage"].split()[:2]
    paths = {*container.paths(), script} - UNMOUNTED - {PurePosixPath("/host/lib/modules")}
    assert not {path for path in paths if not {path, *path.parents} & {*container.mounts}}
    assert container.writable() == {"/host/sys/bus/pci", "/host/sys/devices", "/var/lib/gpu-plugin"}
    assert {mount["name"] for mount in manifest["volumeMounts"]} <= {*volumes}
    rows = PAGE.split("## vGPUs\n")[1].split("\n## ")[0]
    assert {str(path) for path in container.mounts} | {"privileged"} <= set(re.findall(r"`([^`]+)`", rows))
    ours = {mount["mountPath"] for one in component["containers"] for mount in one["volumeMounts"]}
    assert ours == {"/var/lib/gpu-plugin"}


@each_container
def test_no_container_can_change_itself_or_has_a_namespace_of_the_node(container: Container) -> None:
    assert container.manifest["securityContext"]["readOnlyRootFilesystem"] is True
    assert container.pod["automountServiceAccountToken"] is False
    assert read(PLUGIN / "serviceaccount.yaml")["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(container.pod)


@each_container
def test_what_else_is_mounted_below_a_read_only_directory_of_the_nodes_is_read_only_too(container: Container) -> None:
    for path, mount in container.mounts.items():
        source = container.volumes[mount["name"]].get("hostPath", {}).get("path")
        # The others have no mounts below them.
        assert ("recursiveReadOnly" in mount) == (source in ("/dev", "/proc", "/sys")), path


@each_container
def test_the_page_says_what_each_mount_and_privilege_is_for(container: Container) -> None:
    security = container.manifest["securityContext"]
    resources = container.manifest["resources"]
    wanted = [
        *map(str, container.mounts),
        *security["capabilities"].get("add", []),
        *(security[profile]["type"] for profile in ("appArmorProfile", "seLinuxOptions") if profile in security),
        f"runAsUser: {security['runAsUser']}",
        resources["requests"]["memory"],
        resources["limits"]["memory"],
    ]
    rows = PAGE.split(f"\n| {'plugin' if container is SERVE else 'init container'} | why |\n")[1].split("\n\n")[0]
    left = {cell for row in rows.splitlines() for cell in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(wanted) <= left


def test_probes_and_prometheus_ask_the_ports_that_are_served() -> None:
    served = SERVE.parameters()
    start, live, ready = (SERVE.manifest[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness"))
    assert start == live == {"port": "health", "path": LIVE}
    assert ready == {"port": "health", "path": READY}
    annotations = read(PLUGIN / "daemonset.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(served["metrics"])
    ports = {port["name"]: port["containerPort"] for port in SERVE.manifest["ports"]}
    assert ports == {name: served[name].number for name in ("metrics", "health")}
    assert all(f"`{port}`" in PAGE for port in ports.values())


def test_a_policy_of_the_pod_lets_prometheus_in_and_nobody_else() -> None:
    template = read(PLUGIN / "daemonset.yaml")["spec"]["template"]
    policy = read(PLUGIN / "networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics"}]
    (source,) = rule["from"]
    assert f"`{source['namespaceSelector']['matchLabels']['kubernetes.io/metadata.name']}`" in PAGE


OF_NODE = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}


def test_the_pod_monitor_is_of_the_plugins_pods_and_port() -> None:
    monitor = read(POD_MONITOR / "podmonitor.yaml")["spec"]
    template = read(PLUGIN / "daemonset.yaml")["spec"]["template"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True), "a device's user has a namespace and a pod"
    assert endpoint["relabelings"] == [OF_NODE]


def test_the_pod_monitor_of_vms_is_of_their_pods_and_port() -> None:
    monitor = read(POD_MONITOR / "podmonitor-vms.yaml")["spec"]
    pod = metered_pod(FIXTURES / "vms" / "one-gpu.yaml", 9177)
    (selected,) = monitor["selector"]["matchExpressions"]
    assert selected["key"] in pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert container["ports"] == [{"name": endpoint["port"], "containerPort": 9177}]
    renamed, of_node = endpoint["relabelings"]
    assert of_node == OF_NODE
    assert renamed["sourceLabels"] == ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", selected["key"])]


def test_the_policy_of_vms_leaves_all_ports_open_but_that_of_the_metrics() -> None:
    policy = read(DEPLOY / "launcher/networkpolicy.yaml")["spec"]
    (selected,) = policy["podSelector"]["matchExpressions"]
    assert selected["key"] in metered_pod(FIXTURES / "vms" / "one-gpu.yaml", 9177)["metadata"]["labels"]
    for_all, for_prometheus = policy["ingress"]
    tcp = {port for each in for_all["ports"] if each["protocol"] == "TCP" for port in _range(each)}
    assert {*range(1, 65536)} - tcp == {each["port"] for each in for_prometheus["ports"]} == {9177}
    assert for_prometheus["from"] == read(PLUGIN / "networkpolicy.yaml")["spec"]["ingress"][0]["from"]


def _range(ports: dict[str, Any]) -> range:
    return range(ports["port"], ports["endPort"] + 1)


def test_a_plugin_that_takes_ten_minutes_to_start_is_not_started_again() -> None:
    probe = SERVE.manifest["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_the_config_is_one_under_the_name_that_the_commands_read() -> None:
    (generator,) = read(PLUGIN / "kustomization.yaml")["configMapGenerator"]
    (name,) = generator["files"]
    read_config(PLUGIN / name)
    assert generator["name"] == SERVE.volumes["config"]["configMap"]["name"]
    for container in CONTAINERS.values():
        assert str(container.parameters()["config"]) == f"/etc/gpu-plugin/{name}"


def test_a_changed_config_is_not_another_config_map() -> None:
    (generator,) = read(PLUGIN / "kustomization.yaml")["configMapGenerator"]
    assert generator["options"] == {"disableNameSuffixHash": True}


def test_the_pods_image_is_a_name_without_a_registry() -> None:
    assert {container.manifest["image"] for container in CONTAINERS.values()} == {"gpu-plugin"}


def test_what_installs_the_seccomp_profile_reaches_the_directory_of_that_profile_alone() -> None:
    pod = read(SECCOMP / "daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    (generator,) = read(SECCOMP / "kustomization.yaml")["configMapGenerator"]
    assert pod["volumes"] == [
        {"name": "seccomp-profile", "configMap": {"name": generator["name"]}},
        {
            "name": "seccomp",
            "hostPath": {"path": "/var/lib/kubelet/seccomp/gpu-launcher", "type": "DirectoryOrCreate"},
        },
    ]
    security = container["securityContext"]
    assert (security["capabilities"], security["readOnlyRootFilesystem"]) == ({"drop": ["ALL"]}, True)
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert [container["volumeMounts"][0].get("readOnly"), *places] == [True, "/profile", "/host/seccomp"]
    section = PAGE.split("\n## The seccomp profile of VMs\n")[1].split("\n## ")[0]
    assert all(f"`{word}`" in section for word in (*places, "16Mi", "64Mi", "runAsUser: 0"))


def test_the_seccomp_profile_forbids_what_the_runtimes_do_but_for_what_passt_and_memory_binding_need() -> None:
    profile = json.loads((SECCOMP / "vm.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert allowed >= {"unshare", "mount", "umount2", "pivot_root", "mbind", "set_mempolicy"}
    # Of containerd's contrib/seccomp: with capabilities alone, and never.
    assert not allowed & {"bpf", "chroot", "clone3", "fsopen", "fsmount", "init_module", "iopl", "keyctl", "kexec_load"}
    assert not allowed & {"move_mount", "open_by_handle_at", "open_tree", "perf_event_open", "setns", "umount"}
    # A namespace of the network would open the kernel's packet filters to the container, and passt makes none.
    (unshare,) = (rule for rule in profile["syscalls"] if rule["names"] == ["unshare"])
    (flags,) = unshare["args"]
    assert (flags["op"], flags["valueTwo"], flags["value"] & 0x40000000) == ("SCMP_CMP_MASKED_EQ", 0, 0x40000000)


def test_the_files_for_nodes_are_what_their_readers_read() -> None:
    node = DEPLOY / "node"
    containerd, crio = (tomllib.loads((node / name).read_text()) for name in ("containerd.toml", "crio.conf"))
    runtime = containerd["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime == {"device_ownership_from_security_context": True}
    assert crio["crio"]["runtime"] == {**runtime, "default_ulimits": ["memlock=-1:-1"]}
    lines = (node / "memlock.conf").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["[Service]", "LimitMEMLOCK=infinity"]
