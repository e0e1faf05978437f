"""The rest of what there is to see of KubeVirt in the lab: each way to place cards, each way to get one, and what may
happen to a VM at each moment. With --thorough."""

import json
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from tests.lab import build, page, pods
from tests.lab.kubevirt import cluster, older_plugin, vms
from tests.lab.lab import Lab
from tests.lab.machine import ALONE, CARD, FAR, KUBEVIRT, SHARED
from tests.lab.waiting import NotYet
from tests.launcher.hook.kubevirt import free_ports
from tests.processes import ROOT

pytestmark = pytest.mark.thorough

MACHINE = KUBEVIRT

ON_ROOT_COMPLEX = "kubevirt.io/placePCIDevicesOnRootComplex"
OLDER = "example.com/older"
MOVING = ROOT / "docs" / "moving.md"
IN_MOVING = (
    page.Replaced(
        "vm.yaml > pod.yaml",
        f"--image {build.LAUNCHER} vm.yaml"
        " | sed 's/^      periodSeconds: 5$/      periodSeconds: 30\\n      timeoutSeconds: 30/' > pod.yaml",
        "the lab's image; and each look whether it is ready takes an emulated processor a second",
    ),
    page.Replaced("--timeout=5m", "--timeout=15m", "an emulated node is slow"),
    page.Replaced("--timeout=10m", "--timeout=15m", "the same"),
)
#: Of both cards: where the first seats are.
SEATS = {f"{slot}.{n}": f"0000:0{bus}:00.{n}" for bus, slot in enumerate((ALONE, FAR), start=1) for n in (0, 1)}


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    pod = lab.start_plugin()
    lab.wait_for_cards(2)
    return pod


@pytest.fixture(scope="module")
def permitted(lab: Lab, plugin: str) -> dict[str, Any]:
    """What the CR has."""
    found: dict[str, Any] = yaml.safe_load(cluster.permitted(lab, plugin))
    (card,) = found["permittedHostDevices"]["pciHostDevices"]
    found["permittedHostDevices"]["pciHostDevices"].append({**card, "resourceName": OLDER})
    # virt-handler takes away every mediated device that it does not know.
    found["mediatedDevicesConfiguration"] = {"enabled": False}
    return found


@pytest.fixture(scope="module", autouse=True)
def kubevirt(lab: Lab, permitted: dict[str, Any]) -> None:
    cluster.start(lab, json.dumps(permitted), ["Sidecar"])


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu-launcher.dev/topology": "mirror"},
        {"gpu-launcher.dev/seats": '{"gpu1": 3}'},
        {"gpu-launcher.dev/companions": "none"},
    ],
    ids=["mirror", "seats", "without companions"],
)
def test_the_guest_finds_its_cards_where_explain_says(lab: Lab, annotations: dict[str, str], tmp_path: Path) -> None:
    """Also beside another sidecar, whose change stays."""
    document = vms.manifest("placed", 2, sidecars=(vms.HOOK, vms.SECOND), annotations=annotations)
    with vms.guest(lab, document) as guest:
        assert vms.SECOND_SAYS in guest.xml()
        foretold = vms.foretold(guest, tmp_path)
        assert vms.cards(guest.console()) == {at: CARD[int(host[-1])] for host, at in foretold.items()}


def test_on_the_root_complex_a_card_stays_where_kubevirt_puts_it_and_gets_its_companion(lab: Lab) -> None:
    with vms.guest(lab, vms.manifest("on-root", 1, annotations={ON_ROOT_COMPLEX: "true"})) as guest:
        gpu, audio = sorted(vms.cards(guest.console()))
        assert gpu.startswith("0000:00:")
        assert audio == gpu.replace(".0", ".1")


def test_a_vm_whose_pod_is_guaranteed_has_its_cards_where_others_have_them(lab: Lab) -> None:
    """By its domain: with so little of the processor its Linux takes ten minutes to boot."""
    more = {"domain": {"resources": {what: {"memory": "256Mi", "cpu": "200m"} for what in ("requests", "limits")}}}
    with vms.guest(lab, vms.manifest("guaranteed", 2, more=more)) as guest:
        assert lab.cluster.get("pod", guest.pod)["status"]["qosClass"] == "Guaranteed"
        entries = {f"ua-gpu-gpu{number}": f"0{number}:00.0" for number in (1, 2)}
        assert entries.items() <= vms.addresses(guest.xml("--inactive")).items()


def test_a_variable_of_the_older_dialect_gives_two_cards_and_not_one_with_its_sound(lab: Lab) -> None:
    """What KubeVirt has taken for the second GPU is the first one's sound. The node has one other card for guests: that
    is the one."""
    functions = ",".join(f"{slot}.{n}" for slot in (ALONE, FAR) for n in (0, 1))
    others = " ".join(f"{slot}.{n}" for slot in SHARED for n in (0, 1))
    lab.node.sh(f"for f in {others}; do echo $f > /sys/bus/pci/devices/$f/driver/unbind; done")
    older = _older_plugin(lab, 2, f"PCI_RESOURCE_EXAMPLE_COM_OLDER={functions}")
    try:
        with older, vms.guest(lab, _of_older(vms.manifest("older", 2))) as guest:
            assert vms.cards(guest.console()) == {at: CARD[int(host[-1])] for host, at in SEATS.items()}
            assert "from an older device plugin" in guest.said()
    finally:
        lab.node.sh(f"for f in {others}; do echo $f > /sys/bus/pci/drivers_probe; done")


def test_a_mediated_device_comes_by_its_variable_and_has_a_seat(lab: Lab) -> None:
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    made = "/sys/class/mdev_bus/mbochs/mdev_supported_types/mbochs-small/create"
    lab.node.sh(f"modprobe -d /lab/cdevs mbochs && echo {uuid} > {made}")
    older = _older_plugin(lab, 1, f"MDEV_PCI_RESOURCE_EXAMPLE_COM_OLDER={uuid}")
    document = _of_older(vms.manifest("mediated", 1))
    # KubeVirt would have it be a display, for which QEMU wants a graphics card of the host's.
    document["spec"]["domain"]["devices"]["gpus"][0]["virtualGPUOptions"] = {"display": {"enabled": False}}
    with older, vms.guest(lab, document) as guest:
        assert [*etree.fromstring(guest.xml()).xpath("devices/hostdev[@type='mdev']/source/address/@uuid")] == [uuid]
        assert f"gpu 'gpu1': {uuid}; in the guest 0000:01:00.0" in guest.said()
        assert [*vms.cards(guest.console())] == ["0000:01:00.0"]


def test_the_hook_leaves_as_many_ports_for_hotplug(lab: Lab) -> None:
    with vms.guest(lab, vms.manifest("plain", 1, sidecars=())) as plain:
        ports = free_ports(plain.xml("--inactive"))
    with vms.guest(lab, vms.manifest("hooked", 1)) as hooked:
        assert len(free_ports(hooked.xml("--inactive"))) == len(ports)


@pytest.mark.parametrize("moment", ["Scheduled", "there for KubeVirt", "in the guest"])
def test_a_vm_whose_launcher_is_killed_comes_back_to_its_seats(lab: Lab, moment: str) -> None:
    """At the moments of a start: its pod runs, the hook listens, it has answered."""
    with vms.created(lab, vms.manifest("killed", 1, run_strategy="Always")):
        before = _at(lab, "killed", moment)
        _kill_before_its_guest_runs(before, "/usr/bin/virt-launcher ")
        again = vms.running(lab, "killed", before=before)
        assert sorted(vms.cards(again.console())) == ["0000:01:00.0", "0000:01:00.1"]


def test_a_sidecar_that_is_killed_before_it_is_asked_is_missed_until_the_vmi_is_deleted(lab: Lab) -> None:
    """KubeVirt starts no sidecar again, and waits for its answer; a new VMI has a new one."""
    with vms.created(lab, vms.manifest("deaf", 1, run_strategy="Always")):
        before = _at(lab, "deaf", "there for KubeVirt")
        _kill_before_its_guest_runs(before, "gpu-launcher hook")
        lab.until("the sidecar has ended", lambda: before.ended("hook-sidecar-0"), 60)
        assert vms.phase(lab, "deaf") == "Scheduled"
        lab.cluster.kubectl("delete", "vmi", "deaf", "--wait=false")
        again = vms.running(lab, "deaf", before=before)
        assert sorted(vms.cards(again.console())) == ["0000:01:00.0", "0000:01:00.1"]


def test_a_card_that_goes_away_is_given_to_nobody_and_to_a_vm_that_waits_when_it_is_back(lab: Lab) -> None:
    with lab.holder("holder", 1):
        (held,) = lab.cluster.kubectl("exec", "holder", "--", "printenv", pods.VARIABLE).split()
        free = next(f"{slot}.1" for slot in (ALONE, FAR) if f"{slot}.0" != held)
        lab.node.sh(f"echo {free} > /sys/bus/pci/devices/{free}/driver/unbind")
        lab.wait_for_cards(1)
        with vms.created(lab, vms.manifest("waiting", 1)):
            pod = lab.until("it has a pod", lambda: vms.pod_of(lab, "waiting"), 60)
            assert f"Insufficient {pods.RESOURCE}" in lab.unschedulable(pod)
            lab.node.sh(f"echo {free} > /sys/bus/pci/drivers_probe")
            assert sorted(vms.cards(vms.running(lab, "waiting").console())) == ["0000:01:00.0", "0000:01:00.1"]
    lab.wait_for_cards(2)


def test_after_a_boot_of_the_node_the_vm_is_back_on_its_seats(lab: Lab) -> None:
    with vms.guest(lab, vms.manifest("booted", 2, run_strategy="Always")) as before:
        lab.node.reboot(KUBEVIRT)
        lab.node.sh("modprobe tun")
        again = vms.running(lab, "booted", before=before)
        assert vms.cards(again.console()) == {at: CARD[int(host[-1])] for host, at in SEATS.items()}


def test_the_page_on_moving_moves_a_vm_there_and_back(lab: Lab) -> None:
    """The blocks of docs/moving.md. The guest has the same UUID and its card at the same place, whoever runs it."""
    home = "/run/lab/moving"
    programs = lab.box.path(home) / "bin"
    programs.mkdir(parents=True)
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec {" ".join(lab.cluster.argv())} "$@"\n')
    (programs / "kubectl").chmod(0o755)
    (programs / "gpu-launcher").symlink_to(ROOT / ".venv/bin/gpu-launcher")

    def paste(heading: str) -> None:
        (script,) = (block.script for block in page.blocks(MOVING.read_text()) if block.heading == heading)
        done = lab.box.run(
            "bash", "-c", page.session(page.replaced(script, IN_MOVING), home, f"{home}/bin"), seconds=900
        )
        assert done.returncode == 0, done.stdout + done.stderr

    paste("Before the move")
    annotations = {"gpu-launcher.dev/layout": "1"}
    with vms.guest(lab, vms.manifest("desk", 1, run_strategy="Always", annotations=annotations)) as before:
        uuid = lab.cluster.get("vmi", "desk")["spec"]["domain"]["firmware"]["uuid"]
        seats = vms.cards(before.console())
        assert sorted(seats) == ["0000:01:00.0", "0000:01:00.1"]
        paste("From KubeVirt to gpu-launcher")
        assert f"<uuid>{uuid}</uuid>" in lab.cluster.kubectl("exec", "desk", "--", "gpu-launcher", "ctl", "xml")
        assert vms.cards(lab.console("desk")) == seats
        paste("From gpu-launcher to KubeVirt")
        again = vms.running(lab, "desk", before=before)
        assert lab.cluster.get("vmi", "desk")["spec"]["domain"]["firmware"]["uuid"] == uuid
        assert vms.cards(again.console()) == seats


def test_with_the_gate_plugins_a_vm_without_cards_runs_and_one_with_a_card_does_not(
    lab: Lab, permitted: dict[str, Any]
) -> None:
    """KubeVirt's own mistake: it reads its domain strictly before it asks a plugin. Where this fails it is mended:
    docs/beside-kubevirt.md says which versions have it."""
    cluster.configure(lab, json.dumps(permitted), ["Sidecar", "Plugins"])
    for name in ("plugin", "plugin-policy"):
        text = (ROOT / f"deploy/hook/{name}.yaml").read_text().replace("gpu-launcher:0.1.0", build.LAUNCHER)
        lab.cluster.kubectl("apply", "-f", "-", stdin=text)
    document = vms.manifest("no-cards", 0, sidecars=())
    try:
        lab.until("the policy is in force", lambda: _gets_the_plugin(lab, document), 150)
        with vms.guest(lab, document) as guest:
            assert "the domain has no cards, and stays as it is" in guest.said("gpu-launcher-hook")
        with vms.created(lab, vms.manifest("a-card", 1, sidecars=())):
            said = lab.until("KubeVirt says why", lambda: vms.fault(lab, "a-card"), 300)
            assert "Missing 'mode' attribute on domain hostdev" in said
        # With the annotation the hook is asked before that, and writes the attribute.
        with vms.guest(lab, vms.manifest("both", 1)) as guest:
            assert sorted(vms.cards(guest.console())) == ["0000:01:00.0", "0000:01:00.1"]
    finally:
        lab.cluster.kubectl("delete", "-f", "-", stdin=text)
        lab.cluster.kubectl("delete", "plugins", "--all")
        cluster.configure(lab, json.dumps(permitted), ["Sidecar"])


def test_the_hook_adds_less_than_half_to_a_start_on_an_emulated_processor(lab: Lab) -> None:
    """From the pod to a guest that runs, in turn, as KubeVirt writes the times down. By medians it was 1.27 times as
    long. The goal of 1.1 cannot be reached there: a compiled sidecar that does nothing took 1.27 times as long."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(5):
        for hooked, seconds in took.items():
            with vms.guest(lab, vms.manifest("timed", 1, sidecars=(vms.HOOK,) if hooked else ())) as guest:
                began, ran = map(datetime.fromisoformat, guest.start())
                seconds.append((ran - began).total_seconds())
    print(f"with the hook {took[True]}, without {took[False]}")
    assert statistics.median(took[True]) < 1.5 * statistics.median(took[False]), took


def _gets_the_plugin(lab: Lab, document: Mapping[str, Any]) -> bool:
    """Whether the VM's pod has the plugin's container; the VM goes where it has not. A policy is in force seconds after
    it is there."""
    lab.cluster.apply(dict(document))
    name = document["metadata"]["name"]
    pod = lab.until(f"{name} has a pod", lambda: vms.pod_of(lab, name), 60)
    containers = [one["name"] for one in lab.cluster.get("pod", pod)["spec"]["containers"]]
    if "gpu-launcher-hook" not in containers:
        lab.cluster.delete("vmi", name)
    return "gpu-launcher-hook" in containers


def _at(lab: Lab, name: str, moment: str) -> vms.Guest:
    """The VMI, once it is in that phase, or its hook has said this."""

    def look() -> vms.Guest:
        uid, pod = lab.cluster.get("vmi", name)["metadata"]["uid"], vms.pod_of(lab, name)
        if vms.phase(lab, name) != moment and moment not in lab.cluster.kubectl("logs", pod, "-c", "hook-sidecar-0"):
            raise NotYet(vms.phase(lab, name))
        return vms.Guest(lab, name, uid, pod)

    return lab.until(f"{name}: {moment}", look, 150)


def _kill_before_its_guest_runs(guest: vms.Guest, command: str) -> None:
    """Kill what has this in its command line. Its node has virt-launcher's log for some seconds longer than its pod."""
    vms.kill(guest.lab, command)
    said = guest.lab.node.sh(f"cat /var/log/pods/default_{guest.pod}_*/compute/*.log")
    assert "Domain started." not in said, said


@contextmanager
def _older_plugin(lab: Lab, devices: int, variable: str) -> Iterator[None]:
    """A plugin of others that offers so many of OLDER, once the node has them."""
    nodes = lab.node.sh("ls -d /dev/vfio/vfio /dev/vfio/[0-9]*").split()
    kubelet = {"name": "kubelet", "mountPath": "/var/lib/kubelet/device-plugins"}
    lab.cluster.apply({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "older-plugin"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "plugin",
                "image": build.PLUGIN,
                "command": ["python3", "-c", Path(older_plugin.__file__).read_text()],
                "args": [OLDER, str(devices), variable, *nodes],
                "volumeMounts": [kubelet],
            }],
            "volumes": [{"name": "kubelet", "hostPath": {"path": kubelet["mountPath"]}}],
        },
    })  # fmt: skip
    try:
        lab.wait_for_cards(devices, OLDER)
        yield
    finally:
        lab.cluster.delete("pod", "older-plugin")


def _of_older(document: dict[str, Any]) -> dict[str, Any]:
    for gpu in document["spec"]["domain"]["devices"]["gpus"]:
        gpu["deviceName"] = OLDER
    return document
