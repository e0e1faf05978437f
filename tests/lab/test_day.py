"""A day with VMs, by `kubectl gpuvm` on a person's own machine: apply, look, change, restart, stop; a node that is
lost, a job, a drain, and what is left. The node has VFIO without IOMMUFD, as every Debian has it: cards go by their
IOMMU groups alone. The node that is lost is only its Node object (other_node.py), and goes while the first VM lives.

The tests stand in the day's order. Twenty VMs, changed manifests of controllers and the ways in which a Job ends are in
test_controllers.py.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from launcher.pod.metadata import ID
from tests.lab import build, counting, other_node, pods
from tests.lab.by_address import check_by_address
from tests.lab.conftest import Timed
from tests.lab.lab import Console, Lab
from tests.lab.machine import FAR, LEGACY
from tests.lab.recorded import check_recorded
from tests.lab.restricted import check_restricted
from tests.lab.terminal import HOME, Terminal
from tests.lab.waiting import CommandFailed

MACHINE = LEGACY

_FILE = f"{HOME}/vm.yaml"
ELSEWHERE = "elsewhere"
#: What the guest says to whoever comes to its ports: what ssh expects first.
BANNER = "SSH-2.0-lab"
_ANSWERS = f"""#!/bin/sh
echo 'echo {BANNER}' > /answer
for port in 22 8080; do nc -ll -p $port -e sh /answer & done
"""
REACHED: Mapping[str, Any] = {
    # Each look is a process in the container otherwise.
    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 30},
    "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": _ANSWERS}}],
    "networks": [{"name": "default", "pod": {}}],
    "domain": {
        "devices": {
            "autoattachPodInterface": True,
            "interfaces": [{"name": "default", "passt": {}, "ports": [{"port": 22}, {"port": 8080}]}],
            "disks": [{"name": "seed", "disk": {"bus": "virtio"}}],
        }
    },
}
#: Its pod is deleted a second after its node is found to be lost, and not 300 s.
_GIVEN_UP = {
    "tolerations": [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for taint in ("unreachable", "not-ready")
    ]
}
#: A guest that runs to its end.
_ENDS: Mapping[str, Any] = {
    "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh\npoweroff -f\n"}}],
    "domain": {"devices": {"disks": [{"name": "seed", "disk": {"bus": "virtio"}}]}},
}
#: The VMs of the node that is lost, by their names: what makes their pods, their runStrategy, and what they have.
LOST: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "desk": ("statefulset", "Always", {}),
    "pool": ("deployment", "Always", {}),
    "batch": ("job", "RerunOnFailure", _ENDS),
}


@pytest.fixture(scope="module")
def lost(lab: Lab, plugin: str) -> dict[str, dict[str, Any]]:
    """The pods of LOST by their VMs, which run on a node of which nothing is heard any more."""
    lab.wait_for_cards(2)
    made = [
        found
        for name, (kind, strategy, more) in LOST.items()
        for found in pods.made(
            pods.manifest(name, 1, grace=1, more={**_GIVEN_UP, **more}, run_strategy=strategy), "--as", kind
        )
    ]
    watching = ("get", "pods", "--watch", "--output-watch-events", "-o", "json", "-l", f"{ID} in (desk, batch)")
    lab.box.spawn("watched", *lab.cluster.argv(*watching))
    lab.cluster.kubectl("cordon", lab.node.name)
    other_node.join(lab.cluster, ELSEWHERE, lab.node.name, {pods.RESOURCE: str(len(LOST)), "memory": "64Gi"})
    lab.cluster.apply(*made)

    def bound() -> dict[str, dict[str, Any]] | None:
        found = {name: pod for name in LOST for pod in _of(lab, name)}
        return found if len(found) == len(LOST) and all("nodeName" in pod["spec"] for pod in found.values()) else None

    found = lab.until("the other node has its pods", bound, 60)
    for pod in found.values():
        other_node.run(lab.cluster, pod)
    lab.cluster.kubectl("uncordon", lab.node.name)
    return found


@pytest.fixture(scope="module")
def vm(lab: Lab, lost: object, terminal: Terminal, timed: Timed) -> Console:
    """The console of the VM `first`, which has both cards and a network, once its Linux has booted."""
    document = pods.manifest("first", 2, more=REACHED, run_strategy="Always")
    lab.box.path(_FILE).write_text(json.dumps(document))
    with timed("apply until the guest runs"):
        terminal.gpuvm("apply", "-f", _FILE, "--image", build.LAUNCHER)
        lab.wait_for_log("first", "is running")
    for verb in ("console", "events"):
        # A guest that is up already shows its tree for the line that comes with a call.
        joined = f"for attempt in 1 2 3 4 5; do echo | {shlex.join(terminal.argv(verb, 'first'))} && break; done"
        lab.box.spawn(f"first-{verb}", "sh", "-c", joined)
    console = Console(lab.box, lab.box.logs / "first-console.log")
    with timed("until its Linux has booted, on the console"):
        console.wait_for("GUEST end")
    return console


@pytest.fixture(scope="module")
def identity(lab: Lab, vm: Console) -> dict[str, str | None]:
    """Who the guest of `first` is at its first start, and its memory."""
    return _guest(lab)


def test_the_kernel_has_groups_and_no_device_nodes(lab: Lab) -> None:
    assert "devices" not in lab.node.sh("ls /dev/vfio").split()
    assert lab.node.sh("ls /dev/iommu || true").strip().endswith("No such file or directory")


def test_the_recorded_machine_is_this_one(lab: Lab, plugin: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    check_recorded(lab, plugin, tmp_path, pytestconfig)


def test_without_a_cluster_a_user_gives_a_card_by_its_address_once_root_has_done_its_part(
    lab: Lab, plugin: str
) -> None:
    check_by_address(lab)


def test_an_applied_vm_starts_with_cards_by_their_groups_nodes(lab: Lab, vm: Console) -> None:
    links = lab.node.sh("for card in 01 41; do readlink /sys/bus/pci/devices/0000:$card:00.0/iommu_group; done")
    groups = [link.rpartition("/")[2] for link in links.split()]
    assert f"ua-gpu-gpu2: host {FAR}.0 -> guest 0000:02:00.0" in lab.cluster.kubectl("logs", "first")
    assert lab.cluster.kubectl("exec", "first", "--", "ls", "/dev/vfio").split() == sorted([*groups, "vfio"])


def test_list_why_and_logs_say_that_it_runs(lab: Lab, terminal: Terminal, vm: Console) -> None:
    lab.until("it is ready", lambda: "is Running: nothing keeps it" in terminal.gpuvm("why", "first"), 150)
    first = terminal.listed()["first"]
    assert (first["state"], first["node"], first["cards"]) == ("Running", lab.node.name, [f"2 {pods.RESOURCE}"])
    assert "default_first is running" in terminal.gpuvm("logs", "first")


def test_state_and_events_tell_of_a_pause(lab: Lab, terminal: Terminal, vm: Console, timed: Timed) -> None:
    with timed("state"):
        assert terminal.asked("state", "first") == "default/first: running\n"
    assert terminal.asked("pause", "first") == "first: paused\n"
    assert terminal.asked("state", "first").startswith("default/first: running, paused")
    assert terminal.asked("unpause", "first") == "first: unpaused\n"
    events = lab.box.logs / "first-events.log"
    lab.until("both events", lambda: "suspended" in events.read_text() and "resumed" in events.read_text(), 60)


def test_guest_info_of_a_guest_without_an_agent_says_what_it_lacks(lab: Lab, terminal: Terminal, vm: Console) -> None:
    # An emulated launcher may have no time to answer.
    says = "install qemu-guest-agent in the guest and start it"
    lab.until(says, lambda: says in terminal.refused("guest", "info", "first"), 60)


def test_a_screenshot_is_a_picture(lab: Lab, terminal: Terminal, vm: Console, timed: Timed) -> None:
    with timed("screenshot"):
        terminal.asked("screenshot", "first", "-f", f"{HOME}/screen.png")
    assert lab.box.path(f"{HOME}/screen.png").read_bytes().startswith(b"\x89PNG")


def test_vnc_opens_a_port_where_the_guests_screen_greets(
    lab: Lab, terminal: Terminal, vm: Console, timed: Timed
) -> None:
    with timed("vnc"):
        lab.box.spawn("vnc", *terminal.argv("vnc", "first", "--proxy-only", "--port=15900"))
        terminal.said_at(15900, "RFB 003.")
    lab.box.kill("vnc")


def test_a_port_of_the_guests_is_a_local_one(lab: Lab, terminal: Terminal, vm: Console, timed: Timed) -> None:
    with timed("port-forward"):
        lab.box.spawn("port", *terminal.argv("port-forward", "first", "18080:8080"))
        terminal.said_at(18080, BANNER)
    lab.box.kill("port")


def test_ssh_comes_to_the_guest(lab: Lab, terminal: Terminal, vm: Console, timed: Timed) -> None:
    """The lab's Linux has no sshd: it says its name, and no more."""
    words = ("ssh", "root@vm/first", "-t", "-v", "-t", "-Fnone", "-c", "true")

    def look() -> bool:
        return "remote software version lab" in lab.box.run(*terminal.argv(*words), seconds=60).stderr

    with timed("ssh"):
        lab.until("ssh tells what it has found", look, 150)


def test_the_vms_of_a_lost_node_wait_and_only_a_deployment_makes_another_one(
    lab: Lab, terminal: Terminal, vm: Console, lost: dict[str, dict[str, Any]]
) -> None:
    def deleted() -> bool:
        return all("deletionTimestamp" in lab.cluster.get("pod", _name(pod))["metadata"] for pod in lost.values())

    lab.until("the cluster deletes the lost node's pods", deleted, 150)
    assert terminal.listed()["desk-0"]["state"] == "Terminating"
    said = terminal.gpuvm("why", "desk-0")
    assert "is Terminating: its node is lost" in said
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in said
    lab.until("the Deployment makes another pod", lambda: len(_of(lab, "pool")) == 2, 60)
    for name in ("desk", "batch"):
        assert [_uid(pod) for pod in _of(lab, name)] == [_uid(lost[name])]
    lab.cluster.delete("deployment", "pool")


def test_an_edited_vm_starts_anew_as_the_same_guest(
    lab: Lab, terminal: Terminal, vm: Console, identity: dict[str, str | None], timed: Timed
) -> None:
    assert "pod/first unchanged" in terminal.gpuvm("apply", "-f", _FILE, "--image", build.LAUNCHER)
    assert "its Pod cannot be changed; with --restart" in terminal.refused("edit", "first")
    with timed("a change, until the guest runs again"):
        terminal.gpuvm("edit", "first", "--restart")
        lab.wait_for_log("first", "is running")
    assert "GUEST power button" in vm.text()
    assert _guest(lab) == {**identity, "memory": str(272 << 10)}
    assert len(_of(lab, "first", "configmaps")) == 1


def test_a_restarted_vm_is_the_same_guest_in_the_same_pod(
    lab: Lab, terminal: Terminal, identity: dict[str, str | None], timed: Timed
) -> None:
    uid = _uid(lab.cluster.get("pod", "first"))

    with timed("restart --force, until the guest runs again"):
        # While the guest boots, the answer may come too late; the launcher does it nonetheless, once.
        try:
            terminal.gpuvm("restart", "first", "--force")
        except CommandFailed as late:
            assert "has not answered in" in str(late)  # noqa: PT017 (it may also answer)
        lab.until("another container", lambda: lab.restarts("first") == 1, 60)
        lab.wait_for_log("first", "is running")
    assert _guest(lab) == {**identity, "memory": str(272 << 10)}
    assert _uid(lab.cluster.get("pod", "first")) == uid


def test_a_stopped_vm_has_no_pod_is_listed_and_keeps_its_manifest(lab: Lab, terminal: Terminal, timed: Timed) -> None:
    def stopped() -> bool:
        state = terminal.listed()["first"]["state"]
        if state not in ("Stopped", "Terminating"):
            terminal.gpuvm("stop", "first", "--force")
        return bool(state == "Stopped")

    with timed("stop --force, until its pod is gone"):
        lab.until("its pod is gone", stopped, 150)
    assert not _of(lab, "first")
    (config_map,) = _of(lab, "first", "configmaps")
    assert "272Mi" in config_map["data"]["vm.yaml"]
    assert lab.node.sh("pidof qemu-system-x86_64 || echo none").strip() == "none"


@pytest.mark.thorough
def test_a_vm_is_suspended_resumed_moved_stopped_started_and_deleted(
    lab: Lab, plugin: str, terminal: Terminal, timed: Timed
) -> None:
    """Resumed and moved, its guest goes on; started, it boots. Without --thorough test_mission.py suspends a VM."""
    counting.prepare(lab)
    how: dict[str, Any] = {"grace": 1, "annotations": counting.TO_CLAIM, "more": counting.counts()}
    lab.box.path(_FILE).write_text(json.dumps(pods.manifest("kept", 0, run_strategy="Always", **how)))
    with timed("apply of a small VM, until its guest runs"):
        terminal.gpuvm("apply", "-f", _FILE, "--image", build.LAUNCHER)
        lab.wait_for_log("kept", "is running")
    resumed = counting.check_suspended(lab, terminal, timed, "kept")
    counting.check_moved(lab, terminal, timed, "kept", resumed)
    with timed("stop of the moved VM"):
        terminal.gpuvm("stop", "kept")
        lab.until("it is stopped", lambda: terminal.listed()["kept"]["state"] == "Stopped", 60)
    with timed("start, until its guest runs"):
        terminal.gpuvm("start", "kept")
        assert "goes on from" not in lab.wait_for_log("kept", "is running")
    with timed("delete"):
        counting.delete(lab, terminal, "kept")


def test_with_the_taint_the_lost_vms_start_on_the_other_node_and_never_in_two_places(
    lab: Lab, terminal: Terminal, lost: dict[str, dict[str, Any]], timed: Timed
) -> None:
    with timed("from the taint of a lost node until its VM runs on another"):
        # As `why` has said.
        taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        lab.cluster.kubectl("taint", "node", ELSEWHERE, taint)
        lab.until("another pod", lambda: _uid(lab.cluster.get("pod", "desk-0")) != _uid(lost["desk"]), 60)
        lab.wait_for_log("desk-0", "is running")
    for name in ("desk", "batch"):
        assert {pod["spec"]["nodeName"] for pod in _of(lab, name)} == {lab.node.name}
        assert other_node.most_at_once((lab.box.logs / "watched.log").read_text(), name) == 1


def test_a_drained_vm_ends_within_its_grace_and_waits_for_a_node(lab: Lab, terminal: Terminal, timed: Timed) -> None:
    uid = _uid(lab.cluster.get("pod", "desk-0"))
    lab.box.spawn("desk-log", *lab.cluster.argv("logs", "--follow", "desk-0"))
    log = lab.box.logs / "desk-log.log"
    lab.until("its log is followed", log.read_text, 30)
    with timed("drain"):
        drain = ("drain", lab.node.name, "--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={ID}=desk")
        lab.cluster.kubectl(*drain, seconds=150)
    lab.until("the launcher's last words", lambda: "default_desk-0 has ended: as requested" in log.read_text(), 30)
    lab.until("another pod", lambda: _uid(lab.cluster.get("pod", "desk-0")) != uid, 60)
    lab.unschedulable("desk-0")
    said = terminal.gpuvm("why", "desk-0")
    assert "is Pending: no node takes it" in said
    assert "is cordoned" in said


def test_a_job_runs_its_guest_to_its_end_and_reports_its_exit(lab: Lab, terminal: Terminal, timed: Timed) -> None:
    with timed("until a job's guest, which started beside that VM, has ended"):
        lab.cluster.kubectl("wait", "job/batch", "--for=condition=Complete", "--timeout=-1s", seconds=400)
    (pod,) = _of(lab, "batch")
    assert lab.exit_code(_name(pod)) == 0
    assert "default_batch has ended: the guest has powered itself off" in terminal.gpuvm("logs", _name(pod))
    assert terminal.listed()[_name(pod)]["state"] == "Succeeded"


def test_a_vm_that_waits_is_stopped_and_started_and_has_its_node_when_that_is_back(
    lab: Lab, terminal: Terminal
) -> None:
    terminal.gpuvm("stop", "desk")
    lab.until("its pod is gone", lambda: "desk-0" not in terminal.listed(), 60)
    assert terminal.listed()["desk"]["state"] == "Stopped"
    assert terminal.gpuvm("start", "desk") == "desk: its StatefulSet starts it\n"
    lab.until("its pod is back", lambda: "desk-0" in terminal.listed(), 60)
    lab.cluster.kubectl("uncordon", lab.node.name)
    lab.until("it has a node", lambda: lab.cluster.get("pod", "desk-0")["spec"].get("nodeName") == lab.node.name, 60)


def test_nothing_is_left_of_the_day(lab: Lab, plugin: str, timed: Timed) -> None:
    kinds = "statefulsets,deployments,jobs,pods,configmaps,persistentvolumeclaims"
    with timed("removal"):
        lab.cluster.kubectl("delete", kinds, "-l", ID, "--timeout=0", seconds=150)
        lab.cluster.delete("node", ELSEWHERE)
    assert lab.cluster.kubectl("get", kinds, "-l", ID, "-o", "name") == ""
    assert not [device for device in lab.inventory(plugin).values() if device["inUseBy"]]
    assert lab.node.sh("pidof qemu-system-x86_64 passt gpu-launcher || echo none").strip() == "none"


def test_a_vm_starts_with_cards_by_their_groups_nodes_in_a_restricted_namespace(lab: Lab, plugin: str) -> None:
    """By the device plugin, with a disk in a claim, the pod's network and a second one; as its user from its first
    instruction. The last test: the runtime has no memlock limit from here on."""
    lab.install_multus()
    lab.prepare_runtime(gives_devices=True)
    lab.make_claim("data", "a writable claim")
    lab.wait_for_cards(2)
    # The guest is still booting when it is asked to go, and does not listen.
    with lab.vm("first", 2, grace=1, level="restricted", more=pods.DISK_AND_NETWORKS) as log:
        assert f"ua-gpu-gpu2: host {FAR}.0 -> guest 0000:02:00.0" in log
        check_restricted(lab, "first")


def _of(lab: Lab, vm: str, kind: str = "pods") -> list[dict[str, Any]]:
    """A VM's objects."""
    return lab.cluster.get_all(kind, "-l", f"{ID}={vm}")


def _name(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["name"])


def _uid(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["uid"])


def _guest(lab: Lab) -> dict[str, str | None]:
    """Who the guest of `first` is, and its KiB of memory."""

    def look() -> dict[str, str | None]:
        domain = etree.fromstring(lab.cluster.kubectl("exec", "first", "--", "gpu-launcher", "ctl", "xml"))
        mac = domain.find("devices/interface/mac")
        assert mac is not None
        return {"uuid": domain.findtext("uuid"), "mac": mac.get("address"), "memory": domain.findtext("memory")}

    return lab.until("the domain of first", look, 150)
