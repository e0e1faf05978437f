"""KubeVirt itself, with gpu-plugin as its device plugin and then as its DRA driver, and with the hook: unmodified
programs of the directory that KUBEVIRT names (docs/testing.md). What takes longer is in test_kubevirt_variants.py.

The tests stand in the order of the node's life and share its VMs.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import build, pods
from tests.lab.kubevirt import cluster, vms
from tests.lab.lab import Lab
from tests.lab.machine import ALONE, CARD, FAR, KUBEVIRT
from tests.lab.page import Replaced, replaced
from tests.lab.waiting import CommandFailed
from tests.processes import ROOT, finished

MACHINE = KUBEVIRT

#: deploy/hook/vm.yaml, and what stands there in the lab.
IN_VM = (
    Replaced("gpu-launcher:0.1.0", build.LAUNCHER, "the lab's image"),
    Replaced("nvidia.com/pgpu", pods.RESOURCE, "the lab's cards"),
    Replaced("cores: 8", "cores: 1\n          model: host-passthrough", "the node has one emulated processor"),
    Replaced("guest: 32Gi", "guest: 256Mi", "the node has 6 GiB"),
    Replaced(
        "        devices:\n",
        "        firmware:\n"
        "          kernelBoot:\n"
        f"            container: {{image: '{build.GUEST}', kernelPath: /vmlinuz, initrdPath: /initrd}}\n"
        f"            kernelArgs: {pods.KERNEL_ARGUMENTS}\n"
        "        devices:\n"
        "          autoattachPodInterface: false\n",
        "the lab's Linux; virt-handler can make no tap there",
    ),
    Replaced(
        "    spec:\n      domain", "    spec:\n      terminationGracePeriodSeconds: 0\n      domain", "it ends at once"
    ),
)
VM = "with-two-gpus"

_DRIVER = "gpu-launcher.dev"
#: A claim for a card.
CLAIMED: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "a-card"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": _DRIVER}}]}}},
}


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    pod = lab.start_plugin()
    lab.wait_for_cards(2)
    return pod


@pytest.fixture(scope="module", autouse=True)
def kubevirt(lab: Lab, plugin: str) -> None:
    """What permits the cards is what gpu-plugin has printed."""
    cluster.start(lab, cluster.permitted(lab, plugin), ["Sidecar"])


@pytest.fixture(scope="module")
def plain(lab: Lab) -> Iterator[vms.Guest]:
    """A VM with a card, and without the hook."""
    with vms.guest(lab, vms.manifest("plain", 1, sidecars=())) as guest:
        yield guest


@pytest.fixture(scope="module")
def without_hook(plain: vms.Guest) -> str:
    """Its domain as docs/beside-kubevirt.md says to look at it."""
    return plain.xml("--inactive")


@pytest.fixture(scope="module")
def vm(lab: Lab) -> Iterator[vms.Guest]:
    """deploy/hook/vm.yaml, which takes both cards."""
    lab.cluster.delete("vmi", "plain")
    document = yaml.safe_load(replaced((ROOT / "deploy/hook/vm.yaml").read_text(), IN_VM))
    with vms.guest(lab, document) as guest:
        yield guest


def test_a_vm_without_the_hook_runs_with_the_card_that_gpu_plugin_gave(plain: vms.Guest, without_hook: str) -> None:
    (card,) = plain.inside(f"printenv {pods.VARIABLE}").strip().split(",")
    assert card in (f"{ALONE}.0", f"{FAR}.0")
    assert vms.addresses(without_hook).keys() == {"ua-gpu-gpu1"}


def test_explain_foretells_the_seat_that_the_hook_will_give(
    plain: vms.Guest, without_hook: str, tmp_path: Path
) -> None:
    (tmp_path / "vmi.json").write_text(json.dumps(plain.lab.cluster.get("vmi", plain.name)))
    arguments = ("hook", "--explain", "--vmi", tmp_path / "vmi.json", "--sysfs", vms.SYSFS)
    done = finished("gpu-launcher", *arguments, stdin=without_hook)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("in the guest 0000:01:00.0, .1")


def test_a_pod_of_ours_gets_the_other_card_and_a_third_vm_waits(lab: Lab, plain: vms.Guest) -> None:
    with lab.holder("ours", 1), vms.created(lab, vms.manifest("third", 1, sidecars=())):
        pod = lab.until("the third VM has a pod", lambda: vms.pod_of(lab, "third"), 60)
        assert f"Insufficient {pods.RESOURCE}" in lab.unschedulable(pod)


def test_the_hooks_vm_runs_with_whole_cards_where_explain_says(lab: Lab, vm: vms.Guest, tmp_path: Path) -> None:
    """In NUMA cells as on the host, its screen behind the seats."""
    foretold = vms.foretold(vm, tmp_path)
    assert foretold.keys() == {f"{slot}.{function}" for slot in (ALONE, FAR) for function in (0, 1)}
    screen = {f"0000:00:{vms.SCREEN}": CARD[0]}
    assert vms.cards(vm.console()) == screen | {at: CARD[int(host[-1])] for host, at in foretold.items()}


def test_every_companion_has_an_alias_of_its_own(vm: vms.Guest) -> None:
    assert vms.addresses(vm.xml("--inactive")).keys() == {
        "ua-gpu-gpu1",
        "ua-gpu-gpu2",
        *(f"ua-companion-{slot.replace(':', '-')}-1" for slot in (ALONE, FAR)),
    }


def test_the_sidecar_stays_small(vm: vms.Guest) -> None:
    rollup = vm.inside("cat /proc/1/smaps_rollup", container="hook-sidecar-0")
    kib = re.search(r"^Pss: +(\d+) kB$", rollup, re.MULTILINE)
    assert kib is not None
    assert int(kib[1]) < 40_000


@pytest.mark.thorough
def test_a_plugin_that_is_replaced_leaves_the_vm_alone_and_its_cards_taken(lab: Lab, vm: vms.Guest) -> None:
    before = lab.plugin()
    lab.cluster.delete("pod", before)
    assert lab.plugin() != before
    lab.wait_for_cards(2)
    assert vms.running(lab, VM) == vm


def test_a_sidecar_that_is_killed_leaves_the_vm_alone(lab: Lab, vm: vms.Guest) -> None:
    vms.kill(lab, "gpu-launcher hook")
    lab.until("the sidecar has ended", lambda: vm.ended("hook-sidecar-0"), 60)
    assert vms.running(lab, VM) == vm


@pytest.mark.thorough
def test_after_virt_launcher_was_killed_the_cards_are_on_the_same_seats(lab: Lab, vm: vms.Guest) -> None:
    before = vms.running(lab, VM)
    addresses = vms.addresses(before.xml())
    vms.kill(lab, "/usr/bin/virt-launcher ")
    assert vms.addresses(vms.running(lab, VM, before=before).xml()) == addresses


def test_after_a_stop_and_a_start_the_cards_are_on_the_first_seats(lab: Lab, vm: vms.Guest, tmp_path: Path) -> None:
    """Without the annotation that asked for NUMA cells, and without a screen."""
    vms.run(lab, VM, "Halted")
    lab.until("the VM is gone", lambda: VM not in lab.cluster.kubectl("get", "vmi"), 150)
    template = {
        "metadata": {"annotations": {"gpu-launcher.dev/topology": None}},
        "spec": {"domain": {"devices": {"autoattachGraphicsDevice": False}}},
    }
    lab.cluster.kubectl("patch", "vm", VM, "--type=merge", "-p", json.dumps({"spec": {"template": template}}))
    vms.run(lab, VM, "Always")
    again = vms.running(lab, VM)
    seats = {f"{slot}.{n}": f"0000:0{bus}:00.{n}" for bus, slot in enumerate((ALONE, FAR), start=1) for n in (0, 1)}
    assert vms.foretold(again, tmp_path) == seats
    assert vms.cards(again.console()) == {at: CARD[int(host[-1])] for host, at in seats.items()}


def test_what_the_hook_refuses_the_vm_says(lab: Lab) -> None:
    """In KubeVirt's own condition."""
    lab.cluster.delete("vm", VM)
    wrong = {"gpu-launcher.dev/seats": '{"gpu7": 3}'}
    with vms.created(lab, vms.manifest("refused", 1, annotations=wrong)):
        said = lab.until("KubeVirt says why", lambda: vms.fault(lab, "refused"), 150)
        assert "gpu-launcher.dev/seats: the domain has no card 'gpu7'" in said


def test_by_dra_a_card_comes_by_a_claim_and_one_by_its_resources_name(lab: Lab) -> None:
    """gpu-plugin is the DRA driver now, and prints the resource's DeviceClass. KubeVirt reads the first card in a file
    of the claim's, and the second in a variable; it takes one of each, but not in one list."""
    lab.cluster.delete("daemonset", "gpu-plugin")
    pod = lab.start_plugin({"serve": "dra", **pods.CARDS}, base="dra")
    classes = lab.gpu_plugin(pod, "inventory", "--device-classes", f"--config={pods.CONFIG}", "--dev=/host/dev")
    lab.cluster.apply(CLAIMED, *yaml.safe_load_all(classes))
    document = vms.manifest("claimed", 1)
    document["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": "a-card"}]
    devices = document["spec"]["domain"]["devices"]
    devices["gpus"] = [{"name": "gpu1", "claimName": "card", "requestName": "gpu"}]
    devices["hostDevices"] = [{"name": "gpu2", "deviceName": pods.RESOURCE}]
    with vms.guest(lab, document) as guest:
        assert vms.addresses(guest.xml("--inactive")).keys() >= {"ua-dra-gpu-gpu1", "ua-hostdevice-gpu2"}
        seats = {f"0000:0{bus}:00.{number}": CARD[number] for bus in (1, 2) for number in (0, 1)}
        assert vms.cards(guest.console()) == seats


@pytest.mark.thorough
def test_by_dra_the_policy_gives_a_vm_the_card_that_its_annotation_chooses(lab: Lab) -> None:
    """The VM is as for any cluster, with a deviceName; its UUID is of the card that is the second one in the slice, and
    its model the second one of `first-available`."""
    attributes = lab.published()[f"pci-{FAR.replace(':', '-')}-0"]["attributes"]
    uuid, models = attributes["uuid"]["string"], f"H100,{attributes['productName']['string']}"
    chosen = {"nvidia.com/use-gpuuuid": uuid, "gpu-launcher.dev/first-available": models}
    document = vms.manifest("chooses", 1, annotations=chosen)
    lab.cluster.kubectl("apply", "-f", str(ROOT / "deploy/hook/claims-policy.yaml"))

    def asked() -> str:
        return lab.cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(document))

    def is_refused() -> bool:
        try:
            asked()
        except CommandFailed as error:
            return "has no ResourceClaimTemplate" in str(error)
        return False

    lab.until("a VM that chooses and has no template is refused", is_refused, 60)
    printed = finished("gpu-launcher", "hook", "--claim", "-", stdin=json.dumps(document))
    assert (printed.returncode, printed.stderr) == (0, "")
    lab.cluster.kubectl("apply", "-f", "-", stdin=printed.stdout)
    lab.until("its template is known", asked, 60)
    with vms.guest(lab, document) as guest:
        (entry,) = lab.cluster.get("vmi", guest.name)["spec"]["domain"]["devices"]["gpus"]
        assert entry == {"name": "gpu1", "claimName": "gpu-launcher", "requestName": "gpu-0"}
        domain = guest.xml("--inactive")
        seats = vms.addresses(domain)
        gpu, companion = seats["ua-dra-gpu-gpu1"], seats[f"ua-companion-{FAR.replace(':', '-')}-1"]
        assert companion == gpu.replace(".0", ".1")
        assert re.findall(r"<source>\s*<address [^>]*bus='(0x\w\w)'", domain) == [f"0x{FAR[5:7]}"] * 2
        # The test before this one has seen such seats in a guest.
        assert "in the guest 0000:01:00.0, .1" in guest.said()
