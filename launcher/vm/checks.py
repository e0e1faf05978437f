"""What the checks of all things share: findings as a page and as JSON, fixes that depend on the place of the start, and
whether a file, a directory, a device or a socket can be opened.

A check reads something of the pod into values, and makes findings of these. Nothing is started to find out. The only
way to know whether a file can be opened is to open it: modes and capabilities don't tell what a container's device
cgroup allows (cgroups(7)). Opening a VFIO group or /dev/kvm does nothing to it.

The JSON's keys stay; new ones may come.

    level           of the worst finding: ok, note, warning, error
    findings        errors first, then in the order in which they were looked for
      severity      error: the VM does not start, or would have what is not its own
                    warning: it starts, and may not do well
                    note: what was not looked at, and what else is worth knowing
      subject       what it is about: an entry of the manifest, a volume, a file, a limit
      wrong         what is wrong with it
      fix           what to do about it
"""

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

from program.finding import Finding, worst
from program.problem import Problem, Severity, one_line
from program.terminal import painted


def error(subject: object, wrong: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, Problem(str(subject), wrong, fix))


def warning(subject: object, wrong: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, Problem(str(subject), wrong, fix))


def page(findings: tuple[Finding, ...], *, coloured: bool = False) -> str:
    """Return a count, then two lines for each finding."""
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    lines = [f"Errors: {counts[Severity.ERROR]}, warnings: {counts[Severity.WARNING]}."]
    for finding in findings:
        subject, wrong, fix = map(one_line, finding.problem)
        level = painted(f"{finding.severity.word}:", finding.severity, coloured=coloured)
        lines += ["", f"{level} {subject}: {wrong}", f"  {fix}"]
    return "\n".join(lines) + "\n"


def as_json(findings: tuple[Finding, ...]) -> str:
    document = {"level": worst(findings).word, "findings": [finding.as_json() for finding in findings]}
    return json.dumps(document, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The parts of messages that differ. `absent` says that a node is not there, `user` precedes "may lock".

    `kvm_missing`, `kvm_closed`: fixes for /dev/kvm. `memlock`: raises the limit. `bind`: how a card is bound.
    `or_anew`: what else a card's fix may be. `stale`: the fix where a container has other groups' nodes, "" where the
    nodes of all groups are. `no_node`, `no_vfio`: a group's node or /dev/vfio/vfio is missing; `no_access` and
    `not_allowed`: it cannot be opened, for EACCES and for another reason; `in_use`: it is open elsewhere.
    `no_disk_access`: a disk cannot be opened; `room`: its file system may become full. `no_quotes`: the node's Quote
    Generation Service cannot be reached. `no_pages`, `few_pages`, `pages_limit`, `pages_mount`: there are no huge pages
    of the size, too few of these {pages} are free, the cgroup's limit is too low, or no file system has them. {path} is
    the file, {address} the card.
    """

    absent: str
    user: str
    kvm_missing: str
    kvm_closed: str
    memlock: str
    bind: str
    or_anew: str
    stale: str
    no_node: str
    no_vfio: str
    no_access: str
    not_allowed: str
    in_use: str
    no_disk_access: str
    room: str
    no_quotes: str
    no_pages: str
    few_pages: str
    pages_limit: str
    pages_mount: str


_OWNED = "expected the node's container runtime to give devices to the container's user: docs/restricted.md"
_GIVE_KVM = "give the container the device (a resource like devices.gpu-launcher.dev/kvm)"
_REQUESTED = (
    "expected the pod to request each device as a resource, as the one that gpu-launcher pod prints, and the device "
    "plugin to give its nodes"
)
POD = Wording(
    absent="is not in the container",
    user="this container",
    kvm_missing=_GIVE_KVM,
    kvm_closed=f"{_OWNED}, or its mode to be 0666",
    memlock="start the node's container runtime with LimitMEMLOCK=infinity (deploy/node, docs/restricted.md), or give "
    "the container the capability SYS_RESOURCE, as pods of the level privileged have it",
    bind="",
    or_anew=", or, if it is another device than was allocated, since the node was booted with others, delete the pod: "
    "the kubelet repeats its old answer",
    stale="delete the pod, so that its devices are allocated anew: the kubelet has repeated an answer from before the "
    "node was booted with other devices",
    no_node=_REQUESTED,
    no_vfio=f"{_REQUESTED}, and the node to have loaded vfio_pci",
    no_access=f"{_OWNED}, or print the pod with --level baseline",
    not_allowed=f"{_REQUESTED}: the container's device cgroup lets nothing else be opened",
    in_use="end the guest or the program that has the card, in the pod that gpu-plugin inventory names",
    no_disk_access="let its owner or its group be the pod's user (securityContext.fsGroup, of a block device "
    "docs/restricted.md), or the disk be read-only",
    room="give the pod more ephemeral-storage, or mount a larger volume there: a full one pauses the guest",
    no_quotes="where KubeVirt is there too, with its gate WorkloadEncryptionTDX, add devices.kubevirt.io/tdx: 1 to "
    "domain.resources.limits: its device plugin mounts the node's socket",
    no_pages="write another memory.hugepages.pageSize, or choose another node by its allocatable hugepages",
    few_pages="let the pod request {pages} as large as the guest, so that the scheduler counts them, and the node "
    "reserve more (hugepages= on the kernel's command line)",
    pages_limit="let the pod request and limit {pages} as large as the guest, as gpu-launcher pod prints it",
    pages_mount="mount an emptyDir of medium HugePages, or leave the annotation kubevirt.io/memfd out",
)
OWN_MACHINE = Wording(
    absent="is not on this machine",
    user="this user",
    kvm_missing="turn virtualization on in the firmware, and load kvm_intel or kvm_amd",
    kvm_closed="become a member of its group (sudo usermod -aG kvm $USER), and log in again; or call this with sudo",
    memlock="raise the user's limit as root, in /etc/security/limits.d: USER hard memlock unlimited (for a service of "
    "systemd's, LimitMEMLOCK=infinity), and log in again; ulimit -Hl shows it; or call this with sudo",
    bind=": sudo gpu-plugin bind {address}",
    or_anew=", or name another card: gpu-plugin inventory lists them",
    stale="",
    no_node="bind the card to vfio-pci again: sudo gpu-plugin unbind, and bind",
    no_vfio="load it: sudo modprobe vfio-pci",
    no_access="give it to the user that starts the VM: sudo chown $USER {path}, until the next boot; a rule of udev's "
    "lasts; or call this with sudo",
    not_allowed="the kernel's log may say why",
    in_use="end the guest or the program that has the card: sudo find /proc/[0-9]*/fd -lname {path} "
    "prints its number (fuser does not, if root has lent the card)",
    no_disk_access="let its owner be the user that the VM runs as (sudo chown USER {path}), or the disk be read-only",
    room="make room there: a full one pauses the guest",
    no_quotes="start the machine's Quote Generation Service (Intel DCAP's qgsd), and let the user that starts the VM "
    "connect to it",
    no_pages="write another memory.hugepages.pageSize, or boot with hugepagesz= and hugepages= for this one",
    few_pages="reserve more as root: in /sys/kernel/mm/hugepages, or with hugepages= on the kernel's command line",
    pages_limit="raise the limit of the cgroup that starts the VM (hugetlb)",
    pages_mount="mount a hugetlbfs of that size for the user that starts the VM, or leave the annotation "
    "kubevirt.io/memfd out",
)


#: The errno of open(2); None if the file can be opened.
Outcome = int | None


def opened(path: Path, *, writing: bool = True) -> Outcome:
    """Open the file and close it again."""
    try:
        os.close(os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return None


def is_missing(outcome: Outcome) -> bool:
    return outcome in (errno.ENOENT, errno.ENOTDIR)


def because(outcome: int) -> str:
    """`Permission denied`."""
    return os.strerror(outcome)
