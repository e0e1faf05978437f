"""What holds of a VM's pod that was admitted to a namespace which enforces the Pod Security level restricted."""

import re

from launcher.pod.security import SECCOMP_PROFILE
from tests.lab.lab import Lab
from tests.processes import ROOT

_NAMESPACES = {"cgroup", "ipc", "mount", "network", "pid", "uts"}
#: What everybody may create, to ask who it is and what it may do.
_OF_ITSELF = {"selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"}
_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")


def check_restricted(lab: Lab, pod: str) -> None:
    """That its container was made for user 107 without a capability, as runc was told, with namespaces of its own and
    without a token, that its first process is that now, and that the nodes of its cards are this user's and were nobody
    else's to give; and that its service account may do nothing but ask what it may do."""
    spec = lab.runtime_spec(pod)
    process, linux = spec["process"], spec["linux"]
    assert (process["user"]["uid"], process["user"]["gid"], process["noNewPrivileges"]) == (107, 107, True)
    assert [name for name in _SETS if process.get("capabilities", {}).get(name)] == []
    assert process["args"][:2] == ["gpu-launcher", "run"]
    assert not [argument for argument in process["args"] if argument.startswith(("--user", "--give", "--raise"))]
    nodes = {device["path"]: (device.get("uid"), device.get("gid")) for device in linux["devices"]}
    cards = {path: owner for path, owner in nodes.items() if path.startswith("/dev/vfio/")}
    assert cards
    assert {*cards.values()} == {(107, 107)}
    assert {namespace["type"] for namespace in linux["namespaces"]} == _NAMESPACES
    assert {"/proc/kcore", "/sys/firmware"} <= {*linux["maskedPaths"]}
    assert "/proc/sys" in linux["readonlyPaths"]
    assert not [mount for mount in spec["mounts"] if "serviceaccount" in mount["destination"]]
    account = f"system:serviceaccount:default:{lab.cluster.get('pod', pod)['spec']['serviceAccountName']}"
    rights = lab.cluster.kubectl("auth", "can-i", "--list", "--no-headers", f"--as={account}")
    resources = {right.split()[0] for right in rights.splitlines() if not right.startswith(" ")}
    assert {resource.partition(".")[0] for resource in resources} == _OF_ITSELF
    allowed = {name for rule in linux["seccomp"]["syscalls"] for name in rule["names"]}
    assert {"unshare", "pivot_root"} <= allowed
    installed = lab.node.sh(f"cat /var/lib/kubelet/seccomp/{SECCOMP_PROFILE}")
    assert installed == (ROOT / "deploy/plugin/components/seccomp/vm.json").read_text()
    said = lab.cluster.kubectl("exec", pod, "--", "sh", "-c", "cat /proc/1/status /proc/1/limits")
    status = dict(re.findall(r"(?m)^(\w+):\t(.*)$", said))
    assert status["Uid"].split() == ["107"] * 4
    assert {name: status[name] for name in ("CapPrm", "CapEff", "CapBnd")} == dict.fromkeys(
        ("CapPrm", "CapEff", "CapBnd"), "0" * 16
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert re.search(r"(?m)^Max locked memory +\S+ +unlimited", said)
