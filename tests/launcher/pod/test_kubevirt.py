"""`gpu-launcher hook --claim`: the ResourceClaimTemplate of VMs that KubeVirt runs. The policy that gives it to them is
tried in tests/lab/test_device_names.py."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from launcher.pod.kubevirt import claim_template
from program.errors import UserError
from tests.conftest import Command

GPUS = [{"name": "a", "deviceName": "nvidia.com/gpu"}, {"name": "b", "claimName": "own", "requestName": "card"}]
H100 = {"nvidia.com/use-gputype": "H100"}


def vmi(annotations: Mapping[str, Any], gpus: Any = GPUS, **more: Any) -> dict[str, Any]:
    metadata = {"name": "vm", "annotations": annotations}
    spec = {"domain": {"devices": {"gpus": gpus, **more}}}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec}


def within(kind: str, *path: str) -> dict[str, Any]:
    """The instance as the template of an object of this kind."""
    inner: Any = {"metadata": {"annotations": H100}, "spec": vmi({})["spec"]}
    for name in reversed(path):
        inner = {name: inner}
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "other"}, **inner}


def test_a_template_names_what_it_is_for_and_each_request_by_the_entrys_place() -> None:
    nic = [{"name": "c", "deviceName": "example.com/nic"}]
    template = claim_template(vmi({**H100, "other": "word", "nvidia.com/numa-bind": ""}, hostDevices=nic))
    assert template["metadata"]["annotations"] == {
        **H100,
        "gpu-launcher.dev/device-names": "nvidia.com/gpu,|example.com/nic",
    }
    requests = template["spec"]["spec"]["devices"]["requests"]
    assert [request["name"] for request in requests] == ["gpu-0", "hostdevice-0"]


def test_models_in_order_are_alternatives_of_the_request_that_kubevirt_looks_for() -> None:
    template = claim_template(vmi({"gpu-launcher.dev/first-available": "H100,A100"}))
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert (request["name"], [each["name"] for each in request["firstAvailable"]]) == ("gpu-0", ["first", "second"])


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("VirtualMachine", ("spec", "template")),
        ("VirtualMachineInstanceReplicaSet", ("spec", "template")),
        ("VirtualMachinePool", ("spec", "virtualMachineTemplate", "spec", "template")),
    ],
)
def test_vms_that_choose_alike_have_one_template_whatever_makes_them(kind: str, path: tuple[str, ...]) -> None:
    assert claim_template(within(kind, *path)) == claim_template(vmi(H100))
    assert claim_template(vmi({"nvidia.com/use-gputype": "A100"})) != claim_template(vmi(H100))


@pytest.mark.parametrize(
    ("vm", "subject", "wrong"),
    [
        (vmi({}), "metadata.annotations", "has none that chooses a card"),
        (vmi({"nvidia.com/numa-bind": True}), "metadata.annotations", "nvidia.com/numa-bind: found True"),
        (
            vmi({"nvidia.com/nouse-gpuuuid": "GPU-8dcd427f-b4c5-4b2a-9f10-000000000001"}),
            "metadata.annotations",
            "nvidia.com/nouse-gpuuuid names GPU-8dcd427f-b4c5-4b2a-9f10-000000000001, and which card",
        ),
        (vmi(H100, []), "spec.domain.devices", "has no entry by deviceName"),
        (vmi(H100, ["?", {"deviceName": 7}]), "spec.domain.devices", "has no entry by deviceName"),
        (
            vmi(H100, None, hostDevices=GPUS[:1]),
            "metadata.annotations",
            "nvidia.com/use-gputype is for gpus by deviceName",
        ),
    ],
)
def test_a_vm_that_chooses_nothing_is_refused(vm: dict[str, Any], subject: str, wrong: str) -> None:
    with pytest.raises(UserError) as refused:
        claim_template(vm)
    (problem,) = refused.value.problems
    assert (problem.subject, problem.wrong.startswith(wrong)) == (subject, True)


def test_the_command_prints_each_template_once_and_says_which_vm_is_wrong(gpu_launcher: Command) -> None:
    vms = json.dumps(
        {"kind": "List", "apiVersion": "v1", "items": [vmi(H100), within("VirtualMachine", "spec", "template")]}
    )
    assert gpu_launcher("hook", "--claim", "-", stdin=vms).stdout.count("kind: ResourceClaimTemplate\n") == 1
    for flags in (("--claim", "-"), ("--claim=-",)):
        wrong = gpu_launcher("hook", *flags, stdin=json.dumps(vmi({})))
        assert wrong.returncode == 2
        assert wrong.stderr.startswith(
            "gpu-launcher: standard input: VirtualMachineInstance vm: metadata.annotations: has none that chooses "
        )
