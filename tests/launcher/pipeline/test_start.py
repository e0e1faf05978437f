"""What the stages find together, on recorded machines: which of them go on where others refuse."""

from pathlib import Path

import pytest

from launcher.pipeline.described_pod import DescribedPod
from launcher.pipeline.pod import Pod
from launcher.pipeline.start import Start, start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.vm.facts import Facts
from tests.conftest import Machine
from tests.kernel import becomes
from tests.launcher.cases import case
from tests.launcher.vm.trees import write
from tests.launcher.vms import RTX_2060, RTX_3090, RTX_3090_VARIABLE, read_manifest, vmi_text

OWN_CPUS = "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n"
CARD = {RTX_3090_VARIABLE: "0000:01:00.0"}
NUMA = ("{name: vm}", "{name: vm, annotations: {gpu-launcher.dev/topology: numa}}")


def errors(start: Start) -> list[str]:
    """What each is about."""
    return [error.problem.subject for error in start.errors]


def printed(
    text: str, directory: Path, environ: dict[str, str], sysfs: Path | None, facts: Facts | None = None
) -> Start:
    (directory / "vm.yaml").write_text(text)
    pod = Pod(environ=environ, sysfs=sysfs, offline=True)
    return start_of(read_manifest(directory / "vm.yaml"), pod, DescribedPod(known_facts=facts or Facts()))


@pytest.mark.parametrize("topology", ["none", "numa"])
def test_seats_are_judged_where_the_pod_has_too_few_cpus_if_they_do_not_rest_on_them(
    topology: str, machine: Machine, tmp_path: Path
) -> None:
    text = vmi_text(gpus=[("a", RTX_3090)], domain=OWN_CPUS).replace(
        "{name: vm}",
        "{name: vm, annotations: {gpu-launcher.dev/topology: " + topology + "}}",
    )
    start = printed(text, tmp_path, CARD, machine("two-rtx-3090"), Facts(cpus=(0,)))
    assert errors(start) == ["spec.domain.cpu.dedicatedCpuPlacement"]
    assert (start.layout is not None, start.xml) == (topology == "none", None)


def test_a_guest_whose_declared_driver_is_not_the_fabric_managers_does_not_start(
    machine: Machine, tmp_path: Path
) -> None:
    annotations = "{name: vm, annotations: {gpu-launcher.dev/nvidia-driver: 580.126.09}}"
    text = vmi_text(gpus=[("a", RTX_3090)]).replace("{name: vm}", annotations)
    for version, found in (("580.126.09", []), ("580.159.03", ["gpu-launcher.dev/nvidia-driver"])):
        start = printed(text, tmp_path, {**CARD, "FABRIC_MANAGER_VERSION": version}, machine("two-rtx-3090"))
        assert errors(start) == found


@pytest.mark.parametrize("pci_id", ["10de:2342", "10de:2345", "10de:2348", "10de:2941", "10de:31c2"])
def test_the_gpu_of_a_grace_superchip_is_refused_with_what_its_guest_lacks(
    pci_id: str, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    becomes(sys, "0000:01:00.0", pci_id)
    start = printed(vmi_text(gpus=[("a", RTX_3090)]), tmp_path, CARD, sys)
    (error,) = start.errors
    assert str(error) == (
        f"gpu 'a': 0000:01:00.0 (VGA) is the GPU of a Grace superchip ({pci_id}): its guest needs an SMMUv3 with ATS "
        "and NUMA nodes for the card's memory, which gpu-launcher does not make; give the VM another card, or run it "
        "with KubeVirt and its gate GraceIOVirtualization"
    )
    assert start.xml is None


def test_cpus_are_judged_without_the_cards_and_seats_are_not(machine: Machine, tmp_path: Path) -> None:
    text = vmi_text(gpus=[("a", RTX_3090), ("b", RTX_2060)], domain=OWN_CPUS)
    start = printed(text, tmp_path, CARD, machine("two-rtx-3090"), Facts(cpus=(0,)))
    assert errors(start) == ["gpu 'b'", "spec.domain.cpu.dedicatedCpuPlacement"]
    assert [card.claim.entry.name for card in start.cards] == ["a"]
    assert (start.layout, start.xml) == (None, None)
    assumed = printed(text, tmp_path, CARD, machine("two-rtx-3090"))
    assert errors(assumed) == ["gpu 'b'"]
    assert [warning.problem.subject for warning in assumed.warnings] == ["spec.domain.cpu.dedicatedCpuPlacement"]


def test_a_sysfs_that_is_none_is_all_that_is_said_of_what_it_would_show(tmp_path: Path) -> None:
    """Not that cores, NUMA nodes and the cards' places are unknown."""
    text = vmi_text(gpus=[("a", RTX_3090), ("b", RTX_2060)], domain=OWN_CPUS).replace(*NUMA)
    start = printed(text, tmp_path, CARD, tmp_path / "nowhere", Facts(cpus=(0, 1)))
    assert errors(start) == [str(tmp_path / "nowhere"), "gpu 'b'"]


def test_each_error_is_the_stages_own(copied_machine: Machine, tmp_path: Path) -> None:
    sys = write(copied_machine("two-rtx-3090"), {"bus/pci/devices/0000:01:00.0/resource": "nonsense\n"})
    start = printed(vmi_text(gpus=[("a", RTX_3090)], domain=OWN_CPUS), tmp_path, CARD, sys, Facts(cpus=(0,)))
    assert [error.exit_code for error in start.errors] == [1, 2]
    assert (start.facts.bars, start.layout is not None, start.xml) == ({}, True, None)


def test_what_is_to_be_printed_warns_of_what_its_reader_must_know_and_only_then(tmp_path: Path) -> None:
    whole = printed(vmi_text(gpus=[("a", RTX_3090)]), tmp_path, CARD, None)
    assert [warning.problem.subject for warning in whole.warnings] == ["gpu 'a'"]
    refused = printed(vmi_text(gpus=[("a", RTX_3090), ("b", RTX_3090)]), tmp_path, CARD, None)
    assert (errors(refused), refused.warnings) == (["gpu 'b'"], ())


def test_what_is_left_over_is_said_beside_an_error(tmp_path: Path) -> None:
    """It is often what the other resource was to be."""
    start = printed(vmi_text(gpus=[("b", RTX_2060)]), tmp_path, CARD, None)
    assert (errors(start), [warning.problem.subject for warning in start.warnings]) == (
        ["gpu 'b'"],
        [RTX_3090_VARIABLE],
    )


def test_cells_are_carried_as_the_domain_has_them() -> None:
    numa = case("numa-passthrough").world().start(case("numa-passthrough").vm)
    assert numa.layout is not None
    assert numa.xml is not None
    assert [cell.is_bound for cell in numa.layout.cells] == [True] * numa.xml.count("<memnode ")


def test_hugepages_of_a_node_that_are_too_few_are_found_where_nodes_are_passed_through(
    copied_machine: Machine, tmp_path: Path
) -> None:
    """Its cells are bound to nodes without any topology of cards."""
    pool = "hugepages-2048kB/free_hugepages"
    sys = write(
        copied_machine("two-rtx-3090"),
        {
            "fs/cgroup/cpuset.cpus.effective": "0-1,8-9\n",
            f"kernel/mm/hugepages/{pool}": "512\n",
            f"devices/system/node/node0/hugepages/{pool}": "512\n",
            f"devices/system/node/node1/hugepages/{pool}": "0\n",
        },
    )
    cpu = "    cpu: {cores: 4, dedicatedCpuPlacement: true, numa: {guestMappingPassthrough: {}}}\n"
    (tmp_path / "vm.yaml").write_text(
        vmi_text(domain=cpu).replace("{guest: 1Gi}", "{guest: 1Gi, hugepages: {pageSize: 2Mi}}")
    )
    place = ThisPod(uri=f"qemu:///embed?root={tmp_path}", emulation=True, root=tmp_path, dev=None, proc=None)
    start = start_of(read_manifest(tmp_path / "vm.yaml"), Pod(environ={}, sysfs=sys), place)
    problems = [finding.problem for finding in start.all_findings]
    said = [problem.wrong for problem in problems if problem.subject == "hugepages of 2 MiB"]
    assert said == ["are free for 0 MiB on NUMA node 1, and the guest has 512 MiB of it"]


def test_what_keeps_a_guest_from_being_attested_is_said_before_its_start(machine: Machine, tmp_path: Path) -> None:
    place = ThisPod(uri=f"qemu:///embed?root={tmp_path}", emulation=True, root=tmp_path, dev=None, proc=None)
    start = start_of(read_manifest(case("tdx").vm), Pod(environ={}, sysfs=machine("rtx-2060")), place)
    (warning,) = (each for each in start.warnings if each.problem.subject == "/var/run/tdx-qgs/qgs.socket")
    assert "gets no quotes by which a remote party attests it" in warning.problem.wrong


def test_what_libvirt_makes_of_a_disk_is_refused_beside_all_else(machine: Machine, tmp_path: Path) -> None:
    """What only the domain's elements refuse is a finding of check, and no end of it."""
    (tmp_path / "vm.yaml").write_text(case("discard-granularity").vm.read_text())
    pod = Pod(environ={}, sysfs=machine("rtx-2060"))
    start = start_of(read_manifest(tmp_path / "vm.yaml"), pod, ThisPod(uri="test:///default", root=tmp_path))
    (error,) = start.errors
    assert "block" in str(error)
    assert start.xml is None
