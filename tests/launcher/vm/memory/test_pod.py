"""What the pod's memory is for, and what it may not be."""

import re
from pathlib import Path

import pytest

from launcher.fields.quantity import written
from launcher.vm.from_spec import guest_of
from launcher.vm.memory.pod import ANY_CARD, PodMemory, mapped_bars, memory, overhead
from launcher.vm.versions import Version
from program.errors import UserError
from tests.launcher.cases import cases
from tests.launcher.pod.made import written_vm
from tests.launcher.vms import RTX_2060, read_manifest
from tests.processes import ROOT

MIB = 1 << 20
GIB = 1 << 30
BARE = "      autoattachGraphicsDevice: false\n"


def of(path: Path, domain: str = "", *, gpus: int = 0, guest: str = "{guest: 1Gi}", devices: str = BARE) -> PodMemory:
    vm = written_vm(path / "vm.yaml", domain=domain, gpus=[(f"gpu{number}", RTX_2060) for number in range(gpus)])
    vm.write_text(vm.read_text().replace("memory: {guest: 1Gi}", f"memory: {guest}").replace(
        "      autoattachPodInterface: false\n", f"      autoattachPodInterface: false\n{devices}"
    ))  # fmt: skip
    vmi = read_manifest(vm)
    return memory(vmi.spec, guest_of(vmi))


def sizes(found: PodMemory) -> dict[str, int]:
    return {part.what: part.size for part in found.parts}


def test_a_guest_without_anything_takes_its_memory_and_seven_parts_beside_it(tmp_path: Path) -> None:
    found = of(tmp_path)
    assert sizes(found) == {
        "the guest's memory": GIB,
        "the launcher: a supervisor, and a worker with libvirt in it": 80 * MIB,
        "QEMU": 50 * MIB,
        "page tables for the guest's memory, in QEMU": 2 * MIB,
        "page tables for the guest's memory, in KVM": 2 * MIB,
        "1 vCPU": 8 * MIB,
        "QEMU's I/O thread": 8 * MIB,
    }
    assert (found.request, found.limit) == (GIB + 150 * MIB, None)


@pytest.mark.parametrize(
    ("more", "part", "size"),
    [
        ("      tpm: {}\n", "swtpm, the guest's TPM", 53 * MIB),
        ("", "the guest's screen", 32 * MIB),
    ],
)
def test_each_helper_of_the_guests_has_its_part(tmp_path: Path, more: str, part: str, size: int) -> None:
    assert sizes(of(tmp_path, devices=more))[part] == size


def test_each_card_has_page_tables_for_its_bars_and_the_iommu_has_some_for_memory(tmp_path: Path) -> None:
    none, one, four = (of(tmp_path, gpus=number) for number in (0, 1, 4))
    assert "the guest's memory, all of which is pinned" in sizes(one)
    assert one.request - none.request == 2 * MIB + 2 * 256 * MIB
    assert four.request - one.request == 3 * 2 * 256 * MIB


@pytest.mark.parametrize(
    ("bars", "kernel", "tables"),
    [
        (24 * GIB, None, 96 * MIB),
        (256 * GIB, (6, 1, 0), 1024 * MIB),
        # A 512th, in whole MiB.
        (256 * GIB, (6, 12, 0), 2 * MIB),
        (256 * GIB, (6, 12, 43), 2 * MIB),
    ],
)
def test_page_tables_for_bars_are_small_on_a_kernel_that_maps_them_by_huge_pages(
    bars: int, kernel: Version | None, tables: int, tmp_path: Path
) -> None:
    vm = read_manifest(written_vm(tmp_path / "vm.yaml", gpus=[("gpu", RTX_2060)]))
    found = memory(vm.spec, guest_of(vm), mapped_bars(bars, kernel))
    assert sizes(found)["page tables for the devices' BARs, in QEMU and in KVM"] == tables


def test_the_memory_of_a_large_guest_is_mapped_three_times_and_in_huge_pages_by_next_to_nothing(tmp_path: Path) -> None:
    places = [f"page tables for the guest's memory, in {where}" for where in ("QEMU", "KVM", "the IOMMU")]
    plain, huge = (
        sizes(of(tmp_path, gpus=1, guest=f"{{guest: 512Gi{pages}}}")) for pages in ("", ", hugepages: {pageSize: 2Mi}")
    )
    assert [plain[place] for place in places] == [GIB] * 3
    assert [huge[place] for place in places] == [2 * MIB] * 3


def test_a_pod_with_devices_cannot_overcommit_what_vfio_pins(tmp_path: Path) -> None:
    resources = "    resources: {requests: {memory: 512Mi}}\n"
    with pytest.raises(UserError, match=r"requests.memory: 536870912 bytes .* VFIO pins all of that; leave it out"):
        of(tmp_path, resources, gpus=1)
    assert of(tmp_path, resources).parts[0] == (512 * MIB, "requested of the guest's memory")


def test_a_limit_is_the_manifests_and_what_is_beside_the_guest_with_a_reserve(tmp_path: Path) -> None:
    free, limited = of(tmp_path), of(tmp_path, "    resources: {requests: {memory: 1Gi}, limits: {memory: 3Gi}}\n")
    assert limited.request == free.request + 100 * MIB
    assert limited.limit == 3 * GIB + limited.request - GIB


def test_what_is_only_limited_is_requested_as_kubernetes_would(tmp_path: Path) -> None:
    found = of(tmp_path, "    resources: {limits: {memory: 3Gi}}\n")
    assert found.request == found.limit
    assert found.parts[1] == (2 * GIB, "requested beside the guest's memory")


def test_huge_pages_are_neither_in_the_request_nor_in_the_limit(tmp_path: Path) -> None:
    resources = "    resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}\n"
    found = of(tmp_path, resources, guest="{guest: 1Gi, hugepages: {pageSize: 2Mi}}")
    plain = of(tmp_path, resources)
    assert (found.hugepages, found.page) == (GIB, 2 * MIB)
    assert plain.limit is not None
    # With them, 1 MiB of page tables is more than enough, in QEMU and in KVM.
    assert (found.request, found.limit) == (plain.request - GIB - 2 * MIB, plain.limit - GIB - 2 * MIB)


def test_a_team_may_take_what_is_beside_the_guest_out_of_the_request(tmp_path: Path) -> None:
    found = of(tmp_path, "    resources: {overcommitGuestOverhead: true, limits: {memory: 1Gi}}\n")
    assert found.request == GIB
    assert found.limit == of(tmp_path, "    resources: {limits: {memory: 1Gi}}\n").limit


def test_cpus_of_ones_own_take_a_limit_that_is_the_request(tmp_path: Path) -> None:
    cpu = "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n"
    found = of(tmp_path, cpu)
    assert found.request == found.limit == of(tmp_path, "    cpu: {cores: 2}\n").request + 100 * MIB
    both = "    resources: {requests: {memory: 2Gi}, limits: {memory: 2Gi}}\n"
    assert (equal := of(tmp_path, cpu + both)).request == equal.limit
    with pytest.raises(
        UserError, match=r"limits.memory: 3221225472 bytes, and 2147483648 are requested; with dedicated"
    ):
        of(tmp_path, cpu + both.replace("limits: {memory: 2Gi}", "limits: {memory: 3Gi}"))
    with pytest.raises(UserError, match=r"resources.overcommitGuestOverhead: with dedicatedCpuPlacement"):
        of(tmp_path, cpu + "    resources: {overcommitGuestOverhead: true}\n")


def test_every_part_that_a_pod_can_have_is_documented_with_its_size() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", (ROOT / "docs" / "pod.md").read_text(), re.MULTILINE))
    vms = [read_manifest(case.vm) for case in cases()]
    parts = {part for vmi in vms for part in overhead(vmi.spec, guest_of(vmi), ANY_CARD)}
    for part in parts:
        name = re.sub(r"^\d+ vCPUs?$", "vCPUs", part.what)
        assert name in rows, part
        if name == "passt, the guest's network":
            assert rows[name] == "200Mi each"
            assert part.size % (200 << 20) == 0
        elif name == "virtiofsd, for the volumes that the guest mounts":
            assert rows[name] == "80Mi each"
            assert part.size % (80 << 20) == 0
        elif name not in ("vCPUs", "memory.reservedOverhead") and not name.startswith("page tables"):
            assert rows[name] == written(part.size)
    assert {part.what for part in parts} >= {
        "encrypted memory's buffers",
        "arm64's firmware",
        "memory.reservedOverhead",
    }
