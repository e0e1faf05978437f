"""What `gpu-launcher pod --level` prints is admitted at that level, or refused by what needs more.

`violations` is a part of k8s.io/pod-security-admission's policy/check_*.go: its checks of what a pod of ours can have.
The API server itself is asked in the lab (tests/lab/test_controllers.py).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.manifest.parser import read_vm
from launcher.pod.controllers import Run
from launcher.pod.objects import LEVEL, objects
from launcher.pod.security import APPARMOR_PROFILE, SECCOMP_PROFILE, Confinement, Level
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.cases import VMS
from tests.launcher.pod.made import IMAGE, NODE_DEVICES, container_of, pod_of, written_vm
from tests.processes import ROOT

RESTRICTED, BASELINE = Confinement(Level.RESTRICTED), Confinement(Level.BASELINE)
_OF_BASELINE = {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"}
_OF_BASELINE |= {"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
_SYSCTLS = {"net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start"}
_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "projected", "secret", "persistentVolumeClaim", "image"}
_HOST = re.compile(r'"(?:host|hostPort|hostNetwork|hostPID|hostIPC|privileged|procMount)":')
#: What no pod below `privileged` can have, in the manifests of fixtures/vms.
REFUSED = {
    "host-disk": "spec.volumes[0].hostDisk: is a hostPath of the pod",
    "kubevirt-host-disk": "spec.volumes[0].hostDisk: is a hostPath of the pod",
    "realtime": "spec.domain.cpu.realtime: takes the capability SYS_RESOURCE, to raise rtprio",
}


def violations(pod: dict[str, Any], level: Level) -> Iterator[str]:
    """What the level does not allow."""
    (container,) = pod["containers"]
    own, its = container["securityContext"], pod["securityContext"]
    added = {*own["capabilities"].get("add", [])}
    yield from added - _OF_BASELINE
    yield from {kind for volume in pod["volumes"] for kind in volume if kind == "hostPath"}
    yield from {sysctl["name"] for sysctl in its.get("sysctls", [])} - _SYSCTLS
    for profile in ("seccompProfile", "appArmorProfile"):
        if own.get(profile, {}).get("type") == "Unconfined":
            yield profile
    yield from _HOST.findall(json.dumps(pod))
    if level is Level.RESTRICTED:
        yield from added - {"NET_BIND_SERVICE"}
        yield from {kind for volume in pod["volumes"] for kind in volume if kind != "name"} - _VOLUMES
        if "ALL" not in own["capabilities"]["drop"] or own["allowPrivilegeEscalation"] is not False:
            yield "capabilities"
        if own["seccompProfile"]["type"] not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if its["runAsNonRoot"] is not True or its["runAsUser"] == 0:
            yield "runAsUser"


def printed_pods(confinement: Confinement) -> tuple[dict[str, Any], dict[str, str]]:
    """The Pod of each manifest of fixtures/vms, by its name there; of the others, the error."""
    pods, refused = {}, {}
    for path in sorted(VMS.glob("*.yaml")):
        given = read_vm(path)
        claims = {volume.name for volume in given.instance.spec.volumes if volume.kind == "persistentVolumeClaim"}
        how: dict[str, Any] = {"image": IMAGE, "block": frozenset(claims), "node_devices": NODE_DEVICES, "start": True}
        try:
            *_, pods[path.stem] = objects(given, confinement=confinement, run=Run(), **how)
        except UserError as error:
            refused[path.stem] = str(error)
    return pods, refused


@pytest.mark.parametrize("confinement", [BASELINE, RESTRICTED], ids=lambda confinement: confinement.level)
def test_every_manifest_has_a_pod_of_the_level_or_says_what_needs_more(confinement: Confinement) -> None:
    pods, refused = printed_pods(confinement)
    found = {name: {*violations(pod["spec"], confinement.level)} for name, pod in pods.items()}
    assert {name: words for name, words in found.items() if words} == {}
    assert {name for name in refused if "Pod Security" in refused[name]} == {*REFUSED}
    for name, words in REFUSED.items():
        fix = "leave it out, or print the pod with --level privileged"
        assert f"{words}, which the Pod Security level {confinement.level} does not allow; {fix}" in refused[name]


def test_the_rules_would_find_the_pods_of_the_level_privileged() -> None:
    unconfined = {"seccompProfile", "appArmorProfile"}
    for name, expected in {
        "no-devices": set(),
        "one-gpu": {"SYS_RESOURCE"},
        "host-disk": {"hostPath", *unconfined},
        "realtime": {"SYS_RESOURCE", *unconfined},
    }.items():
        assert {*violations(pod_of(VMS / f"{name}.yaml")["spec"], Level.BASELINE)} == expected, name


def test_a_vm_with_cards_a_block_device_and_a_network_is_the_user_from_its_first_instruction() -> None:
    pod = pod_of(VMS / "whole-machine.yaml", frozenset(), RESTRICTED)
    (container,) = pod["spec"]["containers"]
    assert (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["runAsNonRoot"]) == (107, True)
    assert container["command"] == ["gpu-launcher", "run", "--vm", "/etc/gpu-launcher/vm.yaml"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["metadata"]["annotations"][LEVEL] == "restricted"


def test_at_baseline_it_starts_as_root_and_raises_no_limit() -> None:
    pod = pod_of(VMS / "one-gpu.yaml", frozenset(), BASELINE)
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 0
    assert "--give=/dev/vfio" in container["command"]
    assert not [argument for argument in container["command"] if argument.startswith("--raise")]
    assert container["securityContext"]["capabilities"]["add"] == ["CHOWN", "SETGID", "SETUID"]


def test_passt_and_memory_of_a_numa_node_have_the_profile_that_the_component_installs() -> None:
    installed = (ROOT / "deploy/plugin/components/seccomp/daemonset.yaml").read_text()
    directory, _, file = SECCOMP_PROFILE.partition("/")
    assert f"path: /var/lib/kubelet/seccomp/{directory}\n" in installed
    assert file in installed
    for name in ("devices-by-default", "topology-numa"):
        for confinement in (BASELINE, RESTRICTED):
            profile = container_of(VMS / f"{name}.yaml", frozenset(), confinement)["securityContext"]["seccompProfile"]
            assert profile == {"type": "Localhost", "localhostProfile": SECCOMP_PROFILE}


@pytest.mark.parametrize("level", Level)
def test_a_node_with_apparmor_has_a_profile_for_passt(level: Level) -> None:
    security = container_of(VMS / "devices-by-default.yaml", frozenset(), Confinement(level, True))["securityContext"]
    assert security["appArmorProfile"] == {"type": "Localhost", "localhostProfile": APPARMOR_PROFILE}
    assert f"\nprofile {APPARMOR_PROFILE} " in (ROOT / "deploy/node/apparmor").read_text()
    without = container_of(VMS / "no-devices.yaml", frozenset(), Confinement(level, True))["securityContext"]
    assert "appArmorProfile" not in without


def test_a_host_that_the_kubelet_asks_is_no_host_of_baseline(tmp_path: Path, gpu_launcher: Command) -> None:
    probe = "  readinessProbe: {tcpSocket: {port: 22, host: 10.0.0.1}}\n"
    path = written_vm(tmp_path / "vm.yaml", spec=probe + "  networks: [{name: default, pod: {}}]\n")
    interface = "interfaces: [{name: default, masquerade: {}}]"
    path.write_text(path.read_text().replace("autoattachPodInterface: false", interface))
    assert pod_of(path)
    refused = gpu_launcher("pod", path, "--level", "baseline")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "spec.readinessProbe.tcpSocket.host: has the kubelet ask another host, which the Pod" in refused.stderr


def test_the_command_line_names_the_level(gpu_launcher: Command) -> None:
    said = gpu_launcher("pod", VMS / "no-devices.yaml", "--level", "restricted", "--apparmor")
    assert f"{LEVEL}: restricted" in said.stdout
    assert "'privileged', 'baseline', 'restricted'" in gpu_launcher("pod", VMS / "no-devices.yaml", "--level=x").stderr
