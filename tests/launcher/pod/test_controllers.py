"""What runs a VM instead of a bare Pod, and what its pods have of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft7Validator

from launcher.manifest.parser import read_vm
from launcher.pod.controllers import Kind, Run
from launcher.pod.documents import documents
from launcher.pod.objects import objects
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.manifest.test_inputs import vm, written
from tests.launcher.pod.made import IMAGE, NODE_DEVICES
from tests.openapi import CUT, KINDS

Object = dict[str, Any]
SCHEMA = json.loads(CUT.read_text())
DATA_VOLUME = {"storage": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}}
IMPORTED = {**DATA_VOLUME, "source": {"registry": {"url": "docker://example.com/disk"}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.yaml"


def machine(strategy: str = "Always", data_volume: Object | None = None, **spec: Any) -> Object:
    """With `spec` beside its domain, and its root disk on a claim of the template."""
    document = vm("web")
    document["spec"]["runStrategy"] = strategy
    template = document["spec"]["template"]
    template["spec"] |= spec
    if data_volume is not None:
        document["spec"]["dataVolumeTemplates"] = [{"metadata": {"name": "system"}, "spec": data_volume}]
        template["spec"]["volumes"] = [{"name": "root", "dataVolume": {"name": "system"}}]
    return document


def made(path: Path, document: Object, run: Run, **flags: Any) -> list[Object]:
    """Valid to Kubernetes' schema, as YAML says them."""
    given = read_vm(written(path, document))
    printed = documents(objects(given, image=IMAGE, block=frozenset(), node_devices=NODE_DEVICES, run=run, **flags))
    found = list(yaml.load_all(printed, yaml.CSafeLoader))
    for each in found:
        if each["kind"] in KINDS:
            validator = Draft7Validator({**SCHEMA, "$ref": f"#/definitions/{KINDS[each['kind']]}"})
            assert [error.message for error in validator.iter_errors(each)] == []
    return found


def refused(path: Path, document: Object, run: Run) -> list[str]:
    with pytest.raises(UserError) as error:
        made(path, document, run)
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize(
    ("kind", "strategy"), [(Kind.DEPLOYMENT, "Always"), (Kind.STATEFULSET, "Always"), (Kind.JOB, "Once")]
)
def test_the_pod_of_a_controller_is_the_pod_but_for_its_name(path: Path, kind: Kind, strategy: str) -> None:
    """And, of a Job, for what makes a guest that is asked to end a failure."""
    *_, pod = made(path, machine(strategy), Run())
    *_, controller = made(path, machine(strategy), Run(kind, 2))
    assert (controller["kind"], controller["metadata"]["name"]) == (kind.kind, "web")
    template = controller["spec"]["template"]
    assert template["metadata"] == {key: pod["metadata"][key] for key in ("labels", "annotations")}
    (container,), (others,) = pod["spec"].pop("containers"), template["spec"].pop("containers")
    assert {**pod["spec"], "hostname": None} == {**template["spec"], "hostname": None}
    assert "hostname" not in template["spec"]
    if kind is Kind.JOB:
        assert others["command"] == [*container.pop("command"), "--to-its-end"]
        assert container.pop("env") != others["env"]
        del others["command"], others["env"]
    else:
        selector = controller["spec"]["selector"]["matchLabels"]
        assert selector.items() <= template["metadata"]["labels"].items()
    assert others == container


@pytest.mark.parametrize(
    ("run", "longest"),
    [
        (Run(Kind.STATEFULSET), 52),
        (Run(Kind.JOB), 63),
        (Run(Kind.JOB, 11), 60),  # the last one is -10
        (Run(Kind.DEPLOYMENT), 200),
        (Run(), 200),
    ],
    ids=str,
)
def test_a_name_is_as_long_as_its_controllers_pods_can_have_it(path: Path, run: Run, longest: int) -> None:
    """Seen with Kubernetes 1.36: of a longer one the API server takes no such controller, or no pod of its."""
    document = machine("Once" if run.kind is Kind.JOB else "Always")
    document["metadata"]["name"] = "a" * longest
    made(path, document, run)
    document["metadata"]["name"] += "a"
    if run.kind in (Kind.STATEFULSET, Kind.JOB):
        (problem,) = refused(path, document, run)
        assert problem.startswith(f"metadata.name: has {longest + 1} characters")
        assert problem.endswith(f"at most {longest} long; shorten it")
    else:
        made(path, document, run)


@pytest.mark.parametrize("run", [Run(Kind.STATEFULSET), Run(Kind.JOB, 2)], ids=str)
def test_host_names_have_no_dots(path: Path, run: Run) -> None:
    document = machine("Once" if run.kind is Kind.JOB else "Always")
    document["metadata"]["name"] = "web.example"
    (problem,) = refused(path, document, run)
    assert problem.endswith("pods are made of it; write 'web-example'")
    for other in (Run(Kind.JOB), Run(Kind.DEPLOYMENT), Run()):
        document["spec"]["runStrategy"] = "Once" if other.kind is Kind.JOB else "Always"
        made(path, document, other)


def test_a_deployment_never_needs_a_second_card_and_a_stateful_set_starts_all_at_once(path: Path) -> None:
    *_, deployment = made(path, machine(), Run(Kind.DEPLOYMENT))
    *_, stateful_set = made(path, machine(), Run(Kind.STATEFULSET, 20))
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment["spec"]["progressDeadlineSeconds"] == 3600
    # Whoever scales it says how many there are.
    assert "replicas" not in deployment["spec"]
    assert (stateful_set["spec"]["replicas"], stateful_set["spec"]["podManagementPolicy"]) == (20, "Parallel")


@pytest.mark.parametrize(
    ("strategy", "retries", "actions"), [("RerunOnFailure", 6, ["FailJob", "Ignore"]), ("Once", 0, ["FailJob"])]
)
def test_a_job_fails_for_a_wrong_manifest_and_tries_everything_else_again_as_the_vm_says(
    path: Path, strategy: str, retries: int, actions: list[str]
) -> None:
    *_, job = made(path, machine(strategy), Run(Kind.JOB))
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == actions
    assert rules[0]["onExitCodes"] == {"containerName": "compute", "operator": "In", "values": [2]}
    assert (job["spec"]["backoffLimit"], job["spec"]["podReplacementPolicy"]) == (retries, "Failed")
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    *_, many = made(path, machine(strategy), Run(Kind.JOB, 20))
    assert {key: many["spec"][key] for key in ("completions", "parallelism", "completionMode")} == {
        "completions": 20,
        "parallelism": 20,
        "completionMode": "Indexed",
    }
    assert many["spec"]["backoffLimitPerIndex"] == retries


def test_each_attempt_of_a_job_is_the_same_guest(path: Path) -> None:
    def variables(run: Run) -> dict[str, Any]:
        *_, job = made(path, machine("RerunOnFailure"), run)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return {each.pop("name"): each for each in container["env"]}

    assert variables(Run(Kind.JOB))["GPU_LAUNCHER_NAME"] == {"value": "web"}
    many = variables(Run(Kind.JOB, 2))
    assert many["GPU_LAUNCHER_NAME"] == {"value": "web-$(GPU_LAUNCHER_INDEX)"}
    # Kubernetes expands only what it has read before.
    assert list(many).index("GPU_LAUNCHER_INDEX") < list(many).index("GPU_LAUNCHER_NAME")


@pytest.mark.parametrize(
    ("strategy", "kind", "said"),
    [
        (
            "RerunOnFailure",
            Kind.STATEFULSET,
            "a StatefulSet starts a guest again whenever it ends, and this VM's",
        ),
        (
            "Once",
            Kind.DEPLOYMENT,
            "a Deployment starts a guest again whenever it ends, and this VM's",
        ),
        ("Always", Kind.JOB, "a Job is done with its guest, and this VM's pod has restartPolicy: Always; write Rerun"),
        (
            "Halted",
            Kind.STATEFULSET,
            "says runStrategy: Halted: a VM that is not to run has no pod; start",
        ),
    ],
)
def test_a_run_strategy_that_the_controller_cannot_have_is_refused(
    path: Path, strategy: str, kind: Kind, said: str
) -> None:
    (problem,) = refused(path, machine(strategy), Run(kind))
    assert said in problem


def test_each_replica_of_a_stateful_set_has_claims_of_its_own(path: Path) -> None:
    document = machine(data_volume=IMPORTED)
    document["spec"]["template"]["spec"]["domain"]["firmware"] = {"bootloader": {"efi": {"persistent": True}}}
    _, source, stateful_set = made(path, document, Run(Kind.STATEFULSET, 3))
    assert (source["kind"], source["spec"]) == ("VolumeImportSource", {"source": IMPORTED["source"]})
    claims = {each["metadata"]["name"]: each["spec"] for each in stateful_set["spec"]["volumeClaimTemplates"]}
    assert list(claims) == ["gpu-launcher-state", "root"]
    filled = {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "system"}
    assert claims["root"] == {**DATA_VOLUME["storage"], "dataSourceRef": filled}
    spec = stateful_set["spec"]["template"]["spec"]
    assert not claims.keys() & {volume["name"] for volume in spec["volumes"]}
    assert claims.keys() <= {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ({"pvc": {"name": "golden"}}, {"kind": "PersistentVolumeClaim", "name": "golden"}),
        ({"snapshot": {"name": "golden"}}, {"kind": "VolumeSnapshot", "name": "golden"}),
    ],
)
def test_a_claim_may_be_a_clone(path: Path, source: Object, spec: Object) -> None:
    _, made_source, _ = made(path, machine(data_volume={**DATA_VOLUME, "source": source}), Run(Kind.STATEFULSET))
    assert (made_source["kind"], made_source["spec"]) == ("VolumeCloneSource", {"source": spec})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"storage": {}, "source": {"blank": {}}}, "spec.dataVolumeTemplates[0].spec: says no accessModes or no size"),
        (
            {**DATA_VOLUME, "source": {"upload": {}}},
            "spec.dataVolumeTemplates[0].spec.source: is upload, with which",
        ),
        (
            {**DATA_VOLUME, "sourceRef": {}},
            "spec.dataVolumeTemplates[0].spec.sourceRef: is not converted to",
        ),
        (
            {**DATA_VOLUME, "source": {"pvc": {"name": "golden", "namespace": "images"}}},
            "spec.dataVolumeTemplates[0].spec.source.pvc: is in images, and a replica's claim is cloned in its own",
        ),
        (
            {"storage": {**DATA_VOLUME["storage"], "volumeName": "x"}, "source": {"blank": {}}},
            "spec.dataVolumeTemplates[0].spec: has volumeName, which no replica's own claim can have; leave it out",
        ),
    ],
)
def test_what_no_claim_of_a_replica_can_be_is_refused_by_its_path(path: Path, spec: Object, problem: str) -> None:
    (said,) = refused(path, machine(data_volume=spec), Run(Kind.STATEFULSET))
    assert said.startswith(problem)


def test_without_datavolumes_the_one_vm_of_a_stateful_set_has_the_claim_that_is_there(path: Path) -> None:
    *_, stateful_set = made(path, machine(data_volume=IMPORTED), Run(Kind.STATEFULSET), imports=False)
    assert "volumeClaimTemplates" not in stateful_set["spec"]
    volumes = {each["name"]: each for each in stateful_set["spec"]["template"]["spec"]["volumes"]}
    assert volumes["root"]["persistentVolumeClaim"] == {"claimName": "system"}


CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
SHARED: list[tuple[Object, str]] = [
    (machine(volumes=CLAIM), "spec.volumes[0] data"),
    (machine(volumes=[{"name": "data", "hostDisk": {"path": "/data/d.img", "type": "Disk"}}]), "spec.volumes[0] data"),
    (machine(resourceClaims=[{"name": "gpus", "resourceClaimName": "one"}]), "spec.resourceClaims[0] gpus"),
]


@pytest.mark.parametrize(("document", "subject"), SHARED, ids=[subject for _, subject in SHARED])
def test_what_is_one_guests_alone_is_refused_for_several_and_for_a_deployment(
    path: Path, document: Object, subject: str
) -> None:
    (said,) = refused(path, document, Run(Kind.STATEFULSET, 2))
    assert said.startswith(f"{subject}: several guests would have it; ")
    (said,) = refused(path, document, Run(Kind.DEPLOYMENT))
    assert said.startswith(f"{subject}: a Deployment may have two pods of one VM for some time; ")
    assert made(path, document, Run(Kind.STATEFULSET, 1))


@pytest.mark.parametrize(
    ("run", "strategy", "why"),
    [
        (Run(Kind.STATEFULSET, 2), "Always", "several guests would have it"),
        (Run(Kind.DEPLOYMENT), "Always", "a Deployment may have two pods of one VM for some time"),
        (Run(Kind.JOB), "Once", "a Job would start a suspended guest again"),
    ],
)
def test_a_vm_that_can_be_suspended_is_one_that_stays(path: Path, run: Run, strategy: str, why: str) -> None:
    document = machine(strategy)
    document["spec"]["template"]["metadata"] = {"annotations": {"gpu-launcher.dev/suspend-to": "memory"}}
    (said,) = refused(path, document, run)
    assert said.startswith(f"metadata.annotations gpu-launcher.dev/suspend-to: {why}; ")
    assert made(path, machine(), Run(Kind.STATEFULSET, 1))


def test_what_guests_can_share_is_taken(path: Path) -> None:
    read_only = [{"name": "data", "ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}}]
    assert made(path, machine(volumes=read_only), Run(Kind.DEPLOYMENT, 2))
    document = machine(volumes=CLAIM)
    devices = document["spec"]["template"]["spec"]["domain"]["devices"]
    devices["disks"] = [{"name": "data", "disk": {"bus": "virtio"}, "shareable": True}]
    assert made(path, document, Run(Kind.DEPLOYMENT, 2))


def test_an_identity_of_the_manifests_own_is_for_one_guest(path: Path) -> None:
    document = machine(networks=[{"name": "default", "pod": {}}])
    domain = document["spec"]["template"]["spec"]["domain"]
    domain["firmware"] = {"uuid": "6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0"}
    interface = {"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01"}
    domain["devices"] = {"interfaces": [interface]}
    fix = "several guests would have the same one; leave it out: each has its own by its name"
    assert refused(path, document, Run(Kind.DEPLOYMENT, 2)) == [
        f"spec.domain.firmware.uuid: {fix}",
        f"spec.domain.devices.interfaces[0].macAddress: {fix}",
    ]
    assert made(path, document, Run(Kind.DEPLOYMENT, 1))


def test_a_disruption_budget_is_printed_where_it_is_asked_for(path: Path) -> None:
    _, budget, stateful_set = made(path, machine(), Run(Kind.STATEFULSET, 3, 0))
    assert budget["spec"] == {
        "maxUnavailable": 0,
        "selector": stateful_set["spec"]["selector"],
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    assert refused(path, machine("Once"), Run(Kind.JOB, 3, 0)) == [
        "--max-unavailable: Kubernetes counts no pods of a Job; use --as statefulset or deployment"
    ]


def test_a_pod_is_one_vm(path: Path, gpu_launcher: Command) -> None:
    result = gpu_launcher("pod", written(path, machine()), "--replicas", "2")
    wrong = "gpu-launcher: --replicas: a Pod is one VM; use --as statefulset, deployment or job\n"
    assert (result.returncode, result.stderr) == (2, wrong)


def test_queues_find_their_labels_and_annotations_on_the_controller_and_on_its_pods(path: Path) -> None:
    document = machine(schedulerName="volcano")
    kueue = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "high"}
    volcano = {"scheduling.volcano.sh/queue-name": "gpus", "scheduling.k8s.io/group-name": "web"}
    document["spec"]["template"]["metadata"] = {"labels": kueue, "annotations": volcano}
    *_, stateful_set = made(path, document, Run(Kind.STATEFULSET, 2))
    template = stateful_set["spec"]["template"]
    assert kueue.items() <= stateful_set["metadata"]["labels"].items()
    assert kueue.items() <= template["metadata"]["labels"].items()
    assert volcano.items() <= template["metadata"]["annotations"].items()
    assert template["spec"]["schedulerName"] == "volcano"


def test_what_nobody_else_needs_is_owned_by_the_controller(path: Path) -> None:
    uid = "6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0"
    config_map, _ = made(path, machine(), Run(Kind.DEPLOYMENT), owner=uid)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": uid}
    assert config_map["metadata"]["ownerReferences"] == [owner]
