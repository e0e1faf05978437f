"""VMs of KubeVirt's in the lab, and what can be seen of one that runs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lxml import etree
from lxml.etree import _Element as Element

from tests.lab import build, pods
from tests.lab.lab import Console, Lab
from tests.lab.machine import CARD
from tests.lab.waiting import NotYet
from tests.launcher.hook.kubevirt import one
from tests.processes import FIXTURES, finished

#: KubeVirt's node, as it was recorded under another name.
SYSFS = FIXTURES / "sysfs" / "lab-modern"
SCREEN = "05.0"  # its slot and function in a guest: docs/guest-pci.md
SIDECARS = "hooks.kubevirt.io/hookSidecars"
#: As deploy/hook/vm.yaml has it.
HOOK: Mapping[str, Any] = {"image": build.LAUNCHER, "args": ["hook"]}
#: What another sidecar does: something that has nothing to do with cards. KubeVirt has "None" there.
SECOND_SAYS = "what the second sidecar says"
_SECOND = f"""
from pathlib import Path
from launcher.hook.api import v1alpha3_pb2
from launcher.hook.calls import Callbacks, Info
from launcher.hook.sidecar import serve_until_stopped
async def says(domain, vmi):
    return domain.replace(b">None</entry>", b">{SECOND_SAYS}</entry>")
serve_until_stopped(Path("/var/run/kubevirt-hooks/second.sock"), [Info(), Callbacks(v1alpha3_pb2, says)])
"""
SECOND: Mapping[str, Any] = {"image": build.LAUNCHER, "command": ["python3", "-c", _SECOND]}


def manifest(
    name: str,
    cards: int,
    *,
    sidecars: tuple[Mapping[str, Any], ...] = (HOOK,),
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    run_strategy: str | None = None,
) -> dict[str, Any]:
    """The VM of `pods.manifest` with a CPU that KubeVirt takes, without a screen, and with these sidecars."""
    hooks = {SIDECARS: json.dumps(sidecars)} if sidecars else {}
    theirs = {"domain": {"cpu": {"model": "host-passthrough"}, "devices": {"autoattachGraphicsDevice": False}}}
    return pods.manifest(
        name,
        cards,
        grace=0,
        annotations={**hooks, **(annotations or {})},
        more=pods.merged(theirs, more or {}),
        run_strategy=run_strategy,
    )


@dataclass(frozen=True)
class Guest:
    """A VMI that runs, by its name and UID; `pod` is its pod."""

    lab: Lab
    name: str
    uid: str
    pod: str

    def inside(self, script: str, container: str = "compute") -> str:
        """What the script prints in one of the pod's containers."""
        return self.lab.cluster.kubectl("exec", self.pod, "-c", container, "--", "sh", "-c", script)

    def xml(self, *flags: str) -> str:
        """Its domain, as virsh has it."""
        return self.inside(f"virsh dumpxml {' '.join(flags)} default_{self.name}")

    def said(self, container: str = "hook-sidecar-0") -> str:
        """The log of a container."""
        return self.lab.cluster.kubectl("logs", self.pod, "-c", container)

    def console(self) -> Console:
        """The guest's serial console, of which QEMU keeps a log for KubeVirt's own container. That one looks for the
        file for some seconds, and then ends for a while."""
        name = f"{self.pod}-console"
        log = f"/var/run/kubevirt-private/{self.uid}/virt-serial0-log"
        self.lab.box.spawn(
            name, *self.lab.cluster.argv("exec", self.pod, "-c", "compute", "--", "tail", "-n", "+1", "-F", log)
        )
        return Console(self.lab.box, self.lab.box.logs / f"{name}.log")

    def start(self) -> tuple[str, str]:
        """When its pod was there, and when its guest ran: as KubeVirt writes them down."""
        moments = _status(self.lab, self.name)["phaseTransitionTimestamps"]
        when = {one["phase"]: one["phaseTransitionTimestamp"] for one in moments}
        return when["Scheduling"], when["Running"]

    def ended(self, container: str) -> bool:
        """Whether the container has ended."""
        statuses = self.lab.cluster.get("pod", self.pod)["status"]["containerStatuses"]
        return any(one["name"] == container and "terminated" in one["state"] for one in statuses)


@contextmanager
def created(lab: Lab, document: Mapping[str, Any]) -> Iterator[str]:
    """The VM by its name, from its creation on; deleted afterwards."""
    kind, name = document["kind"], document["metadata"]["name"]
    lab.cluster.apply(dict(document))
    try:
        yield name
    finally:
        lab.cluster.delete(kind, name)


@contextmanager
def guest(lab: Lab, document: Mapping[str, Any]) -> Iterator[Guest]:
    """The same, once its guest runs."""
    with created(lab, document) as name:
        yield running(lab, name)


def running(lab: Lab, name: str, *, before: Guest | None = None) -> Guest:
    """The VMI by that name, once its guest runs; another one than `before`."""

    def look() -> Guest:
        vmi = lab.cluster.get("vmi", name)
        status, uid = vmi.get("status", {}), vmi["metadata"]["uid"]
        # virt-handler gives up a VMI whose virt-launcher has no socket after 3 min, and KubeVirt starts its VM again.
        starts_again = "ownerReferences" in vmi["metadata"]
        assert starts_again or status.get("phase") not in ("Failed", "Succeeded"), f"{name} has ended"
        if status.get("phase") != "Running" or (before is not None and uid == before.uid):
            raise NotYet(f"{status.get('phase')} {fault(lab, name)}")
        return Guest(lab, name, uid, pod_of(lab, name))

    return lab.until(f"{name} runs", look, 300)


def pod_of(lab: Lab, name: str) -> str:
    """The pod of a VMI; NotYet where it has none."""
    made = f"kubevirt.io/created-by={lab.cluster.get('vmi', name)['metadata']['uid']}"
    names = lab.cluster.kubectl("get", "pods", "-l", made, "-o", "name").split()
    if not names:
        raise NotYet("no pod")
    return names[0].removeprefix("pod/")


def kill(lab: Lab, command: str) -> None:
    """Kill the node's processes whose command lines have this."""
    is_one = f"tr '\\0' ' ' < $process/cmdline | grep -q '{command}'"
    lab.node.sh(f"for process in /proc/[0-9]*; do ! {is_one} || kill -KILL ${{process#/proc/}}; done")


def fault(lab: Lab, name: str) -> str:
    """Why KubeVirt cannot bring the VMI up; empty where it says nothing."""
    conditions = {one["type"]: one for one in _status(lab, name).get("conditions", [])}
    synchronized = conditions.get("Synchronized", {})
    return str(synchronized["message"]) if synchronized.get("status") == "False" else ""


def phase(lab: Lab, name: str) -> str:
    return str(_status(lab, name).get("phase", ""))


def run(lab: Lab, name: str, strategy: str) -> None:
    """Start or stop a VirtualMachine by its run strategy."""
    lab.cluster.kubectl("patch", "vm", name, "--type=merge", "-p", json.dumps({"spec": {"runStrategy": strategy}}))


def _status(lab: Lab, name: str) -> dict[str, Any]:
    status: dict[str, Any] = lab.cluster.get("vmi", name).get("status", {})
    return status


def foretold(guest: Guest, directory: Path) -> dict[str, str]:
    """Each function's address on the host and in the guest, as `gpu-launcher explain` has them of the VM with the cards
    that its pod has, and without its sidecars."""
    document = guest.lab.cluster.get("vmi", guest.name)
    del document["metadata"]["annotations"][SIDECARS], document["status"]
    document["metadata"]["annotations"]["gpu-launcher.dev/allow-emulation"] = "true"
    file = directory / "vm.json"
    file.write_text(json.dumps(document))
    variable = f"{pods.VARIABLE}={guest.inside(f'printenv {pods.VARIABLE}').strip()}"
    done = finished("gpu-launcher", "explain", file, "--json", "--emulation", "--sysfs", SYSFS, "--env", variable)
    assert done.returncode == 0, done.stderr
    return {one["host"]: one["guest"] for entry in json.loads(done.stdout)["entries"] for one in entry["passed"]}


def cards(console: Console) -> dict[str, str]:
    """The guest's functions that are like our cards', by address, as it lists them itself."""
    return {address: what for address, what in console.functions().items() if what in CARD}


def addresses(xml: str) -> dict[str, str]:
    """Of each <hostdev> with an alias the guest's address: index of its bus, slot and function."""
    devices = etree.fromstring(xml).iterfind("devices/hostdev")
    return {one(device, "alias").get("name", ""): _address(device) for device in devices}


def _address(device: Element) -> str:
    bus, slot, function = (int(one(device, "address").get(part, ""), 16) for part in ("bus", "slot", "function"))
    return f"{bus:02x}:{slot:02x}.{function}"
