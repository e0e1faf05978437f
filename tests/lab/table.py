"""A table of VMs as users write them (vms/), started on real VFIO and never resumed: each in a pod of ours
(test_mission.py), and by KubeVirt with the hook (test_kubevirt_table.py). Whoever runs one, its cards are where
`gpu-launcher explain` says, and so at the same addresses.

What the hook refuses is in no file: p2p, no-mmap and vfio have their tests elsewhere.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from launcher.runtime.hostdevs import hostdevs_in
from launcher.vm.paths import LIBVIRT_ROOT
from pci.address import PCIAddress
from tests.lab import pods
from tests.lab.kubevirt import vms
from tests.lab.lab import Lab
from tests.processes import FIXTURES, finished

TABLE = sorted((Path(__file__).parent / "vms").glob("*.yaml"))
#: What the plugin offers beside the cards, for `hostDevices`.
USB: Mapping[str, Any] = {"device": "1b36:000d", "resource": "example.com/usb"}
#: Where the machine has given that to vfio-pci itself.
_SYSFS = FIXTURES / "sysfs" / "lab-legacy"
#: The images of the disks that are on the node; that of the claim `block` is a device.
_DISKS = """
modprobe loop
for disk in home block shelf; do
    mkdir -p /var/lib/$disk && truncate -s 1M /var/lib/$disk/disk.img && chown -R 107:107 /var/lib/$disk
done
losetup /dev/loop7 /var/lib/block/disk.img
"""
#: The variables of a pod's container, and libvirt's file of its VM, which is QEMU's user's.
_READ = f"env; setpriv --reuid=107 cat {LIBVIRT_ROOT}/run/qemu/*.xml"


@dataclass(frozen=True)
class Started:
    """A VM that was started: its container's variables that name devices, and its domain as libvirt had it."""

    variables: tuple[str, ...]
    domain: ElementTree.Element

    def disks(self) -> set[str]:
        """Their names in the manifest."""
        aliases = self.domain.iterfind("devices/disk/alias")
        return {alias.get("name", "").removeprefix("ua-") for alias in aliases}

    def devices(self) -> dict[str, str]:
        """Each function's address on the host and in the guest."""
        return {device.host: str(device.guest) for device in hostdevs_in(self.domain, _numbers(self.domain))}


def prepare(lab: Lab) -> None:
    """Make the disks of the claims and of hostDisk."""
    lab.node.sh(_DISKS)
    lab.cluster.apply(
        _volume("home", hostPath={"path": "/var/lib/home"}),
        _volume("block", volumeMode="Block", local={"path": "/dev/loop7"}, nodeAffinity=_on(lab.node.name)),
    )


def in_a_pod(lab: Lab, file: Path) -> Started:
    """Start the VM in the pod that `gpu-launcher pod` makes of it, and delete that."""
    documents = [*yaml.safe_load_all(file.read_text())]
    objects = pods.made({"apiVersion": "v1", "kind": "List", "items": documents})
    (pod,) = (each["metadata"]["name"] for each in objects if each["kind"] == "Pod")
    lab.cluster.apply(*(each for each in documents if each["apiVersion"] == "v1"), *objects)
    try:
        lab.wait_for_log(pod, "is running, paused")
        # `ctl xml`, a Python that imports gRPC, would take half as long as the start.
        return _read(lab.cluster.kubectl("exec", pod, "--", "sh", "-c", _READ))
    finally:
        lab.cluster.delete("pod", pod)


def by_kubevirt(lab: Lab, file: Path) -> Started:
    """Have KubeVirt start the VM, with the hook, and delete it."""
    *others, vm = yaml.safe_load_all(file.read_text())
    lab.cluster.apply(*others)
    metadata = vm["spec"].get("template", vm)["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), vms.SIDECARS: json.dumps([vms.HOOK])}
    with vms.guest(lab, vm) as guest:
        return _read(guest.inside(f"env; virsh dumpxml default_{guest.name}"))


def disks(file: Path) -> set[str]:
    """The names of the VM's disks."""
    *_, vm = yaml.safe_load_all(file.read_text())
    devices = vm["spec"].get("template", vm)["spec"]["domain"]["devices"]
    return {disk["name"] for disk in devices.get("disks", [])}


def explained(file: Path, variables: tuple[str, ...]) -> dict[str, str]:
    """What Started.devices is to be, as `gpu-launcher explain` says."""
    flags = (word for variable in variables for word in ("--env", variable))
    done = finished("gpu-launcher", "explain", file, "--json", "--emulation", "--sysfs", _SYSFS, *flags)
    assert done.returncode == 0, done.stderr
    return {one["host"]: one["guest"] for entry in json.loads(done.stdout)["entries"] for one in entry["passed"]}


def _read(text: str) -> Started:
    """Read the container's variables, and the domain's XML after them."""
    variables, _, xml = text.partition("<")
    tree = ElementTree.fromstring(f"<{xml}")
    (domain,) = tree.iter("domain")  # libvirt has it within its state
    return Started(tuple(line for line in variables.splitlines() if line.startswith("PCI_RESOURCE_")), domain)


def _numbers(domain: ElementTree.Element) -> dict[int, int]:
    """The guest's bus numbers by libvirt's index of the controller, as firmware gives them: depth first in the order of
    slots, and behind an expander from its own on."""
    behind = defaultdict(list)
    for controller in domain.iterfind("devices/controller[@type='pci']"):
        if (address := controller.find("address")) is not None:  # a root has none
            at, own = PCIAddress.from_attributes(address.attrib), controller.find("target[@busNr]")
            behind[at.bus].append((at, int(controller.get("index", "")), own))
    numbers = {0: 0}

    def number(bus: int, last: int) -> int:
        for _, index, own in sorted(behind[bus], key=lambda bridge: bridge[0]):
            if own is not None:
                numbers[index] = int(own.get("busNr", ""))
                number(index, numbers[index])
            else:
                numbers[index] = last + 1
                last = number(index, last + 1)
        return last

    number(0, 0)
    return numbers


def _volume(name: str, **spec: Any) -> dict[str, Any]:
    size = {"storage": "1Mi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "capacity": size}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {**common, **spec}}


def _on(node: str) -> dict[str, Any]:
    """The nodeAffinity of a volume that is on this node."""
    is_there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [is_there]}]}}
