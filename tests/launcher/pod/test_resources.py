"""What the container asks of its node."""

from pathlib import Path
from typing import Any

import pytest

from program.errors import UserError
from tests.launcher.cases import VMS
from tests.launcher.pod.made import container_of, text_of, written_vm
from tests.launcher.vms import RTX_2060, RTX_3090


def resources_of(vm: Path) -> Any:
    return container_of(vm)["resources"]


def refused(vm: Path) -> str:
    with pytest.raises(UserError) as error:
        text_of(vm)
    return str(error.value)


def test_each_entry_is_one_unit_of_its_resource(tmp_path: Path) -> None:
    gpus = [("one", RTX_2060), ("other", RTX_3090), ("two", RTX_2060)]
    found = resources_of(written_vm(tmp_path / "vm.yaml", gpus=gpus))
    for amounts in (found["requests"], found["limits"]):
        assert (amounts[RTX_2060], amounts[RTX_3090], amounts["devices.gpu-launcher.dev/kvm"]) == ("2", "1", "1")


def test_who_allows_emulation_runs_where_nobody_offers_kvm(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    allowing = '{name: vm, annotations: {gpu-launcher.dev/allow-emulation: "true"}}'
    path.write_text(path.read_text().replace("{name: vm}", allowing))
    assert "devices.gpu-launcher.dev/kvm" not in resources_of(path)["requests"]


def test_a_guests_vsock_and_encryption_take_a_device_of_the_nodes() -> None:
    assert "devices.gpu-launcher.dev/vhost-vsock" in resources_of(VMS / "rng-and-vsock.yaml")["limits"]
    for name, has_sev in (("sev", True), ("snp", True), ("tdx", False)):
        found = resources_of(VMS / f"{name}.yaml")["limits"]
        assert ("devices.gpu-launcher.dev/sev" in found) == has_sev


@pytest.mark.parametrize(
    ("domain", "request_", "limit"),
    [
        ("", "100m", None),
        ("    cpu: {cores: 8, threads: 2}\n", "1600m", None),
        ("    cpu: {cores: 8}\n    resources: {requests: {cpu: 1500m}}\n", "1500m", None),
        ("    cpu: {cores: 8}\n    resources: {limits: {cpu: 2.5}}\n", "2.5", "2.5"),
        ("    cpu: {cores: 8}\n    resources: {requests: {cpu: 1}, limits: {cpu: 2}}\n", "1", "2"),
        ("    cpu: {cores: 4, dedicatedCpuPlacement: true}\n", "4", "4"),
        ("    cpu: {cores: 4, dedicatedCpuPlacement: true, isolateEmulatorThread: true}\n", "5", "5"),
        ("    cpu: {dedicatedCpuPlacement: true}\n    resources: {requests: {cpu: 3}}\n", "3", "3"),
    ],
)
def test_cpus_are_as_the_manifest_writes_them_or_a_tenth_for_each_vcpu_or_a_whole_one_where_they_are_its_own(
    tmp_path: Path, domain: str, request_: str, limit: str | None
) -> None:
    found = resources_of(written_vm(tmp_path / "vm.yaml", domain=domain))
    assert (found["requests"]["cpu"], found["limits"].get("cpu")) == (request_, limit)


def test_the_manifests_storage_is_beside_our_own(tmp_path: Path) -> None:
    for said, request_, limit in (("", "50M", None), ("limits: {ephemeral-storage: 1Gi}", "1124M", "1124M")):
        found = resources_of(written_vm(tmp_path / "vm.yaml", domain=f"    resources: {{{said}}}\n"))
        storage = "ephemeral-storage"
        assert (found["requests"][storage], found.get("limits", {}).get(storage)) == (request_, limit)


def test_a_pool_of_io_threads_has_cpus_of_its_own_too() -> None:
    assert resources_of(VMS / "dedicated-io-pool.yaml")["limits"]["cpu"] == "5"


def test_huge_pages_are_called_as_the_kubelet_calls_them(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    for size, name in (("2Mi", "hugepages-2Mi"), ("1024Mi", "hugepages-1Gi"), ("64Ki", "hugepages-64Ki")):
        path.write_text(
            written_vm(path).read_text().replace("guest: 1Gi", f"guest: 1Gi, hugepages: {{pageSize: {size}}}")
        )
        assert resources_of(path)["requests"][name] == resources_of(path)["limits"][name] == "1Gi"


def test_a_claim_of_the_pods_own_is_had_as_a_whole_and_of_a_shared_one_what_the_vm_names(tmp_path: Path) -> None:
    """CPUs or a network function of another driver came with the pod's claim, and no container got them."""
    assert resources_of(VMS / "dra.yaml")["claims"] == [{"name": "gpus"}, {"name": "vgpus"}]
    shared = tmp_path / "vm.yaml"
    text = (
        (VMS / "dra.yaml").read_text().replace("resourceClaimTemplateName: vgpu-template", "resourceClaimName: vgpus")
    )
    shared.write_text(f"{text.rstrip()}\n  - {{name: cpus, resourceClaimName: four-cpus}}\n")
    assert resources_of(shared)["claims"] == [{"name": "gpus"}, {"name": "vgpus", "request": "vgpu"}, {"name": "cpus"}]


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (
            f"    resources: {{limits: {{{RTX_2060}: 2}}}}\n",
            f"spec.domain.resources.limits.{RTX_2060}: 2, and the guest's devices and memory are 1; leave it out",
        ),
        (
            "    resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}\n",
            "spec.domain.resources.requests.cpu: 2 is more than the limit; expected at most 1500m",
        ),
        (
            "    resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 2}}\n",
            "spec.domain.resources.requests.example.com/gpu: 1 is not the limit; expected 2, or another limit",
        ),
        (
            "    cpu: {cores: 4, dedicatedCpuPlacement: true}\n    resources: {limits: {cpu: 3500m}}\n",
            "spec.domain.resources.limits.cpu: 3500m, and the guest has 4 vCPUs; with dedicatedCpuPlacement expected",
        ),
    ],
)
def test_resources_that_contradict_each_other_are_refused_by_their_path(tmp_path: Path, domain: str, said: str) -> None:
    assert refused(written_vm(tmp_path / "vm.yaml", domain=domain, gpus=[("gpu", RTX_2060)])).startswith(said)


def test_a_limit_that_says_the_same_as_the_entries_is_no_contradiction(tmp_path: Path) -> None:
    domain = f"    resources: {{limits: {{{RTX_2060}: 1}}}}\n"
    found = resources_of(written_vm(tmp_path / "vm.yaml", domain=domain, gpus=[("gpu", RTX_2060)]))
    assert found["limits"][RTX_2060] == "1"


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "hugepages-2Mi"])
def test_a_device_that_is_requested_without_a_limit_has_it_as_its_limit(tmp_path: Path, name: str) -> None:
    """Without, the API server answers: Limit must be set for non overcommitable resources."""
    found = resources_of(written_vm(tmp_path / "vm.yaml", domain=f"    resources: {{requests: {{{name}: 1}}}}\n"))
    assert found["requests"][name] == found["limits"][name] == "1"


@pytest.mark.parametrize("name", ["cpu", "gpu", "Example.com/gpu", f"example.com/{'g' * 64}"])
def test_a_device_whose_name_no_device_plugin_can_have_is_refused(tmp_path: Path, name: str) -> None:
    assert refused(written_vm(tmp_path / "vm.yaml", gpus=[("first", RTX_2060), ("gpu", name)])) == (
        f"spec.domain.devices.gpus[1].deviceName: {name!r} is no resource of a device plugin's; expected a domain and "
        "a name, like nvidia.com/GH100_H100_PCIE"
    )
