"""Kueue before VMs of ours: twenty, as Jobs and StatefulSets, for a quota of eight cards. An urgent one takes the place
of another, which waits again. Kueue and the queues are set up as docs/queues.md says. `--thorough`, as Kueue is built.

API server, scheduler, controllers and Kueue are real. The node is an object alone, and a stand-in for its kubelet says
that pods run, and lets go of those that are deleted.
"""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import yaml

from tests.clusters import node_of
from tests.lab import build
from tests.lab.box import CONTROL_PLANE
from tests.lab.control_plane import Cluster
from tests.lab.pods import printed
from tests.lab.waiting import CommandFailed, Patience
from tests.processes import ROOT

pytestmark = pytest.mark.thorough

Object = dict[str, Any]
CARD = "nvidia.com/GA102_GEFORCE_RTX_3090"
JOBS, SETS, QUOTA = 12, 8, 8
HOME, NAMESPACE, PORT = "/run/lab/kueue", "kueue-system", 9443
#: Of what Kueue is for here: other webhooks of its are about CRDs that are not there.
HOOKS = re.compile(r"/(mutate|validate)-(kueue-x-k8s-io-\w+-\w+|batch-v1-job|-v1-pod|apps-v1-statefulset)")
#: Kueue's configuration and the queues, as docs/queues.md has them.
(CONFIG,), QUEUES = (
    [*yaml.safe_load_all(re.sub("^    ", "", block, flags=re.MULTILINE))]
    for block in re.findall(r"(?:^    .*\n)+", (ROOT / "docs/queues.md").read_text(), re.MULTILINE)
    if re.search("apiVersion: .*kueue", block)
)
PODS = "api/v1/namespaces/default/pods"


class Kueue:
    """Its program, and what an installation of it applies."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.box = cluster, cluster.box

    def install(self) -> None:
        box = self.box
        box.path(HOME).mkdir()
        box.run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", "/CN=kueue", "-addext", f"subjectAltName=IP:{CONTROL_PLANE}", "-days", "30",
            "-keyout", f"{HOME}/tls.key", "-out", f"{HOME}/tls.crt",
        ).check_returncode()  # fmt: skip
        # The certificate of its metrics has a place of its own.
        place = "/etc/kueue/metrics/certs"
        writable = f"lowerdir=/etc,upperdir={HOME}/etc,workdir={HOME}/work"
        script = f"mkdir {HOME}/etc {HOME}/work; mount -t overlay etc -o {writable} /etc; mkdir -p {place}"
        box.run("sh", "-ec", f"{script}; cp {HOME}/tls.crt {HOME}/tls.key {place}").check_returncode()
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.cluster.kubectl("create", "-f", str(build.kueue() / "components/crd/bases"))
        self.cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")

    def start(self, config: Mapping[str, Any], **gates: bool) -> None:
        """Start it, or again, with a config, and wait until its webhooks answer."""
        self.box.kill("kueue")
        lab = {
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": "127.0.0.1:8081"},
            "metrics": {"bindAddress": "127.0.0.1:8090"},
            "webhook": {"port": PORT, "certDir": HOME},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "featureGates": {"VisibilityOnDemand": False, **gates},
        }
        self.box.path(f"{HOME}/config.yaml").write_text(json.dumps({**config, **lab}))
        environ = {"KUBECONFIG": self.cluster.argv()[2]}
        self.box.spawn("kueue", build.kueue() / "kueue", f"--config={HOME}/config.yaml", env=environ)
        listens = ("curl", "-sk", "-o", f"{HOME}/answer", f"https://{CONTROL_PLANE}:{PORT}/")
        self.box.until("Kueue listens", lambda: self.box.run(*listens).returncode == 0, 60)

    def hook(self) -> None:
        """Have the API server call its webhooks."""
        bundle = base64.b64encode(self.box.path(f"{HOME}/tls.crt").read_bytes()).decode()
        others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
        for each in yaml.safe_load_all((build.kueue() / "components/webhook/manifests.yaml").read_text()):
            its = []
            for hook in each["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                if HOOKS.fullmatch(path):
                    client = {"url": f"https://{CONTROL_PLANE}:{PORT}{path}", "caBundle": bundle}
                    its.append({**hook, "clientConfig": client, "namespaceSelector": {"matchExpressions": [others]}})
            self.cluster.apply({**each, "webhooks": its})


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[Kueue]:
    node = node_of("gpu", {CARD: "64", "cpu": "256", "memory": "1Ti"})
    cluster.apply({key: value for key, value in node.items() if key != "status"})
    status = json.dumps({"status": node["status"]})
    cluster.kubectl("patch", "node", "gpu", "--subresource=status", "--type=merge", "-p", status)
    kueue = Kueue(cluster)
    kueue.install()
    without = {key: value for key, value in CONFIG.items() if key != "resources"}
    kueue.start({**without, "resources": {}})
    kueue.hook()

    def are_taken() -> bool:
        cluster.apply(*QUEUES)
        return True

    Patience().until("the queues are there", are_taken, 60)
    ended = threading.Event()
    kubelet = threading.Thread(target=_be_the_kubelet, args=(cluster, ended))
    kubelet.start()
    yield kueue
    ended.set()
    kubelet.join()


def _be_the_kubelet(cluster: Cluster, ended: threading.Event) -> None:
    while not ended.wait(0.5):
        with suppress(CommandFailed):
            for pod in cluster.read(PODS)["items"]:
                _follow(cluster, pod)


def _follow(cluster: Cluster, pod: Object) -> None:
    name, path = pod["metadata"]["name"], f"{PODS}/{pod['metadata']['name']}"
    if not pod["spec"].get("nodeName"):
        return
    if pod["metadata"].get("deletionTimestamp"):
        cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found")
    elif pod["status"]["phase"] == "Pending":
        ready = [
            {"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady", "Initialized")
        ]
        cluster.patched(f"{path}/status", {"status": {"phase": "Running", "conditions": ready}})


def vm(cluster: Cluster, name: str, kind: str, *flags: str, priority: str | None = None) -> None:
    """Make a VM with a card, in the queue."""
    domain = {"memory": {"guest": "256Mi"}, "devices": {"gpus": [{"name": "gpu1", "deviceName": CARD}]}}
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    if priority is not None:
        labels["kueue.x-k8s.io/priority-class"] = priority
    spec = {"domain": domain, "tolerations": [{"operator": "Exists"}]}
    strategy = "RerunOnFailure" if kind == "job" else "Always"
    template = {"metadata": {"labels": labels}, "spec": spec}
    document = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"runStrategy": strategy, "template": template}}  # fmt: skip
    cluster.apply(*yaml.safe_load_all(printed(document, f"--as={kind}", *flags)))


def running(cluster: Cluster) -> set[str]:
    """The VMs whose pods have a node, and are not being deleted."""
    return {
        pod["metadata"]["labels"]["vmi.kubevirt.io/id"]
        for pod in cluster.read(PODS)["items"]
        if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        and pod["status"]["phase"] in ("Pending", "Running")
    }  # fmt: skip


def conditions(cluster: Cluster, name: str) -> list[Object]:
    """What the Workload of a VM says of itself."""
    return [
        condition
        for each in cluster.get_all("workloads")
        if f"-{name}-" in each["metadata"]["name"]
        for condition in each.get("status", {}).get("conditions", ())
    ]


def says(cluster: Cluster, name: str, words: str) -> bool:
    return any(words in each["message"] for each in conditions(cluster, name))


def is_admitted(cluster: Cluster, name: str) -> bool:
    return any((each["type"], each["status"]) == ("Admitted", "True") for each in conditions(cluster, name))


def end(cluster: Cluster, name: str) -> None:
    """Have a VM's guest power off."""
    for pod in cluster.read(PODS)["items"]:
        if pod["metadata"]["labels"]["vmi.kubevirt.io/id"] == name:
            over = {
                "phase": "Succeeded",
                "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}],
            }
            cluster.patched(f"{PODS}/{pod['metadata']['name']}/status", {"status": over})


def test_twenty_vms_share_eight_cards(kueue: Kueue, noted: Callable[[str], None]) -> None:
    cluster = kueue.cluster
    vm(cluster, "first", "job")
    lacks = "unavailable in ClusterQueue"
    Patience().until("Kueue says what no queue covers", lambda: says(cluster, "first", lacks), 60)
    kueue.start(CONFIG)
    Patience().until("it is admitted", lambda: running(cluster) == {"first"}, 120)
    end(cluster, "first")
    Patience().until("it has ended", lambda: running(cluster) == set(), 60)

    sets, jobs = [f"set-{number}" for number in range(SETS)], [f"job-{number}" for number in range(JOBS)]
    for name in sets[:4]:
        vm(cluster, name, "statefulset")
    for name in jobs:
        vm(cluster, name, "job")
    for name in sets[4:]:
        vm(cluster, name, "statefulset")
    Patience().until("eight run", lambda: len(running(cluster)) == QUOTA, 120)
    before = running(cluster)
    noted(f"of {SETS + JOBS} VMs {len(before)} run: {', '.join(sorted(before))}")

    vm(cluster, "urgent", "job", priority="urgent")
    Patience().until("the urgent one runs", lambda: "urgent" in running(cluster), 120)
    Patience().until("eight run still", lambda: len(running(cluster)) == QUOTA, 60)
    (victim,) = before - running(cluster)
    assert any(each["type"] == "Preempted" for each in conditions(cluster, victim))
    noted(f"the urgent one has the place of {victim}")

    end(cluster, "urgent")
    seen = set(running(cluster))
    Patience().until("another has its place", lambda: len(running(cluster) - {"urgent"}) == QUOTA, 120)

    def all_had_a_card() -> bool:
        now = running(cluster)
        seen.update(now)
        for name in now & {*jobs}:
            end(cluster, name)
        return {*jobs} <= seen | before

    Patience().until("each Job has run", all_had_a_card, 300)
    Patience().until("and each StatefulSet runs", lambda: running(cluster) == {*sets}, 120)
    noted(f"{len(jobs)} Jobs have run, {len(sets)} StatefulSets run, {victim} among them again")


def test_claims_count_by_class_if_they_have_no_selector(kueue: Kueue) -> None:
    """Kueue's part for DRA, which is off by default."""
    cluster = kueue.cluster
    cluster.kubectl("delete", "statefulsets,jobs", "--all", "--wait=false")
    cluster.kubectl("apply", "-f", f"{ROOT}/deploy/dra/deviceclasses.yaml")
    kueue.start(CONFIG, DynamicResourceAllocation=True)
    vm(cluster, "selecting", "job", "--dra")
    unsupported = "CEL selectors are not supported"
    Patience().until("Kueue refuses selectors", lambda: says(cluster, "selecting", unsupported), 120)
    kueue.start(CONFIG)
    Patience().until("without the gate it is admitted", lambda: is_admitted(cluster, "selecting"), 120)
