"""Which annotations of a VM its pod has, at which level."""

import re
from pathlib import Path

import pytest
import yaml

from launcher.manifest.parser import read_vm
from launcher.pod.metadata import DOMAINS, PASSED, WHOLE, is_known
from launcher.pod.security import Confinement, Level
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.pod.made import pod_of
from tests.launcher.vms import vmi_text
from tests.processes import FIXTURES, ROOT

BELOW_PRIVILEGED = (Level.BASELINE, Level.RESTRICTED)
#: As VMs and their pods carry them.
KNOWN = (
    *("vm.kubevirt.io/os", "kubevirt.io/allow-pod-bridge-network-live-migration", "harvesterhci.io/sshNames"),
    *("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", "cni.projectcalico.org/ipAddrs"),
    *("ovn.kubernetes.io/logical_switch", "underlay.default.ovn.kubernetes.io/ip_address", "k8s.ovn.org/pod-networks"),
    *(
        "policy.cilium.io/proxy-visibility",
        "traffic.sidecar.istio.io/kubevirtInterfaces",
        "config.linkerd.io/opaque-ports",
    ),
    *("kubernetes.io/egress-bandwidth", "kubectl.kubernetes.io/default-container", "prometheus.io/port"),
    *("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"),
    *("kueue.x-k8s.io/pod-group-total-count", "scheduling.volcano.sh/queue-name", "scheduling.k8s.io/group-name"),
)
#: Of somebody else, without a domain, and of domains that only look like known ones.
UNKNOWN = (
    *("workload", "kubevirt.io", "example.com/x", "oci.example.com/devices", "kubernetes.io/config.mirror"),
    *("kubevirt.io.example.com/x", "notkubevirt.io/x", "example.com/kubevirt.io", "node.kubernetes.io/x", "/x"),
    *("kubernetes.io/egress-bandwidth/x", "nvidia.com/x", "KUBEVIRT.IO/x"),
)


def annotated(path: Path, *names: str) -> Path:
    path.write_text(vmi_text().replace("{name: vm}", f"{{name: vm, annotations: {dict.fromkeys(names, '1')}}}"))
    return path


@pytest.mark.parametrize("level", BELOW_PRIVILEGED)
def test_those_of_vms_networks_and_queues_are_the_pods_at_every_level(tmp_path: Path, level: Level) -> None:
    pod = pod_of(annotated(tmp_path / "vm.yaml", *KNOWN), confinement=Confinement(level))
    assert dict.fromkeys(KNOWN, "1").items() <= pod["metadata"]["annotations"].items()
    assert PASSED not in pod["metadata"]["annotations"]


@pytest.mark.parametrize("level", BELOW_PRIVILEGED)
def test_each_other_one_is_refused_by_its_name_below_privileged(tmp_path: Path, level: Level) -> None:
    vm = annotated(tmp_path / "vm.yaml", *KNOWN, *UNKNOWN)
    with pytest.raises(UserError) as refused:
        pod_of(vm, confinement=Confinement(level))
    assert [problem.wrong for problem in refused.value.problems] == [
        f"{name!r} is none that a pod of the level {level} has: what runs containers on the node may read it"
        for name in UNKNOWN
    ]
    fixes = {problem.fix.rpartition(" ")[2] for problem in refused.value.problems}
    assert {"workload", "example.com/", "notkubevirt.io/"} <= fixes, "each with the flag's value"
    assert dict.fromkeys(UNKNOWN, "1").items() <= pod_of(vm)["metadata"]["annotations"].items()


def test_the_flag_passes_on_a_name_or_what_begins_so_and_the_pod_says_it(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = annotated(tmp_path / "vm.yaml", "workload", "example.com/a", "example.com/b", "org.example.x")
    flags = ("--pass-annotation=workload", "--pass-annotation=example.com/", "--pass-annotation=org.example.")
    printed = gpu_launcher("pod", vm, "--level=restricted", *flags).stdout
    (pod,) = (each for each in yaml.safe_load_all(printed) if each["kind"] == "Pod")
    annotations = pod["metadata"]["annotations"]
    assert annotations.keys() >= {"workload", "example.com/a", "example.com/b", "org.example.x"}
    assert annotations["gpu-launcher.dev/pass-annotation"] == "workload,example.com/,org.example."
    vm = annotated(tmp_path / "vm.yaml", "workload-x")
    refused = gpu_launcher("pod", vm, "--level=restricted", *flags)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "'workload-x' is none that a pod" in refused.stderr


def test_the_flag_passes_on_nothing_that_a_runtime_is_known_to_read(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = annotated(tmp_path / "vm.yaml", "io.kubernetes.cri-o.Devices")
    refused = gpu_launcher("pod", vm, "--level=restricted", "--pass-annotation=io.kubernetes.cri-o.Devices")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "changes what the pod's container may do, behind the pod's own fields" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pass-annotation=example.com/"], "--pass-annotation: is for --level baseline and restricted"),
        (["--level=baseline", "--pass-annotation="], "expected a name of an annotation, or what names begin with"),
        (["--level=baseline", "--pass-annotation=a,b"], "expected a name of an annotation, or what names begin with"),
    ],
)
def test_a_flag_without_an_effect_or_a_name_is_refused(
    gpu_launcher: Command, tmp_path: Path, flags: list[str], words: str
) -> None:
    refused = gpu_launcher("pod", annotated(tmp_path / "vm.yaml"), *flags)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr


def test_what_published_vms_carry_is_known_but_for_what_nobody_reads() -> None:
    names: set[str] = set()
    for path in (FIXTURES / "published").rglob("*.yaml"):
        try:
            names |= read_vm(path).instance.metadata.annotations.written.keys()
        except UserError:
            continue  # it needs flags, or is refused
    assert len(names) > 15
    assert {name for name in names if not is_known(name)} == {"apply-ordinal", "kubesphere.io/creator"}


def test_the_page_about_levels_lists_the_known_ones() -> None:
    text = (ROOT / "docs/restricted.md").read_text().partition("## Annotations")[2]
    table = text.partition("|---|---|")[2].partition("\n\n")[0]
    listed = re.findall(r"`([^`]+)`", table)
    assert sorted(listed) == sorted([*DOMAINS, *(name for name in WHOLE if not name.startswith("gpu-launcher.dev/"))])
