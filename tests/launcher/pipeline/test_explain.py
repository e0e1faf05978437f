"""What is said of each entry, on the recorded machines."""

import json

import pytest

from launcher.pipeline.explain import Explanation, as_json, explanation, table
from launcher.vm.cards.claims import Allocated, DeviceID, Request
from launcher.vm.cards.guest import not_passed_on, whole_cards
from launcher.vm.guest_pci.addresses import layout
from launcher.vm.guest_pci.locations import located_cards
from pci.address import PCIAddress
from pci.host import Host
from pci.resource import decode_partitions
from pci.sysfs.functions import read_host
from tests.conftest import Command, Machine
from tests.launcher.cases import case
from tests.launcher.vms import RTX_2060_VARIABLE, RTX_3090_VARIABLE, claim, read_manifest
from tests.processes import FIXTURES

VGPU = "11111111-0000-4000-8000-000000000001"
VGPU_VARIABLE = "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q"

ONE, OTHER, THIRD = "0000:01:00.0", "0000:e1:00.0", "0000:86:00.0"
TWO = f"{OTHER},{ONE}"


def explained(
    vm: str, environ: dict[str, str], host: Host | None = None, *, is_confidential: bool = False, **allocated: str
) -> Explanation:
    """A manifest of fixtures/vms; `allocated` has the address that DRA gave for each request of the claim gpus."""
    vmi = read_manifest(FIXTURES / "vms" / f"{vm}.yaml")
    given: dict[Allocated, DeviceID] = {
        Request("gpus", name): PCIAddress.parse(address) for name, address in allocated.items()
    }
    claims, left_over = claim(vmi.spec.domain.devices.entries, environ, host, given)
    cards = whole_cards(claims, left_over, host)
    seated = layout(cards)
    left = not_passed_on(left_over, cards)
    return explanation(
        cards,
        seated,
        located_cards(seated, host),
        left,
        host,
        decode_partitions(environ),
        is_confidential=is_confidential,
    )


def test_two_cards_are_told_by_function_group_node_and_place_in_the_guest(machine: Machine) -> None:
    environ = {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0", RTX_2060_VARIABLE: "0000:86:00.0"}
    found = explained("two-gpus", environ, read_host(machine("two-rtx-3090")))
    assert table(found) == (
        "ENTRY     HOST          IS     GUEST         GROUP  NUMA  ALIAS\n"
        "gpu gpu1  0000:e1:00.0  GPU    0000:01:00.0  71     1     ua-gpu-gpu1\n"
        "          0000:e1:00.1  audio  0000:01:00.1  71     1\n"
        "gpu gpu2  0000:01:00.0  GPU    0000:02:00.0  11     0     ua-gpu-gpu2\n"
        "          0000:01:00.1  audio  0000:02:00.1  11     0\n"
        "gpu gpu1, gpu gpu2: from nvidia.com/GA102_GEFORCE_RTX_3090, by\n"
        "  PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090\n"
        "VFIO: by groups; IOMMUFD needs libvirt 12.2 and a kernel with it, which Debian's lack, and with it\n"
        "  cards reach each other only from Linux 6.19 and QEMU 11 on\n"
        "\n"
        "HOST  gpu1  gpu2\n"
        "gpu1  X     SYS\n"
        "gpu2  SYS   X\n"
        "\n"
        "GUEST  gpu1   gpu2\n"
        "gpu1   X      PHB *\n"
        "gpu2   PHB *  X\n"
        "* 1 pair: SYS on the host, PHB in the guest\n"
        "PHB same root; SYS other node\n"
        "\n"
        "left over: 0000:86:00.0 of PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A\n"
    )


def test_two_entries_for_one_card_are_said_to_be_on_one_slot(machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", "PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:01:00.1"}
    found = explained("card-by-two-entries", environ, read_host(machine("rtx-2060")))
    gpu, audio = found["entries"]
    assert [passed["guest"] for passed in gpu["passed"]] == ["0000:01:00.0", "0000:01:00.2", "0000:01:00.3"]
    assert [passed["guest"] for passed in audio["passed"]] == ["0000:01:00.1"]
    assert ("onSlotOf" in gpu, audio.get("onSlotOf"), found["distances"]) == (False, "gpu1", [])
    assert table(found).endswith("one card: hostdevice audio is on the slot of gpu1\n")


def test_the_json_has_these_keys() -> None:
    found = explained("one-gpu", {RTX_2060_VARIABLE: "0000:01:00.0", VGPU_VARIABLE: VGPU})
    assert json.loads(as_json(found)) == {
        "entries": [
            {
                "kind": "gpu",
                "name": "gpu1",
                "resource": "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A",
                "claim": None,
                "request": None,
                "network": None,
                "variable": RTX_2060_VARIABLE,
                "alias": "ua-gpu-gpu1",
                "iommuGroup": None,
                "numaNode": None,
                "missing": "0000:01:00.0 was not looked up: there is no --sysfs",
                "passed": [{"host": "0000:01:00.0", "is": None, "guest": "0000:01:00.0"}],
            }
        ],
        "vfio": {"by": "groups", "why": WHY},
        "distances": [],
        "partitions": [],
        "cliques": [],
        "leftOver": [{"variable": VGPU_VARIABLE, "devices": [VGPU]}],
        "memory": None,
    }


def test_how_long_the_memory_takes_is_told_where_the_nodes_pages_are_known(
    gpu_launcher: Command, copied_machine: Machine
) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "kernel/mm/transparent_hugepage").mkdir(parents=True)
    (sys / "kernel/mm/transparent_hugepage/enabled").write_text("always madvise [never]\n")
    flags = ("explain", FIXTURES / "vms/one-gpu.yaml", "--sysfs", sys, "--env", f"{RTX_2060_VARIABLE}=0000:01:00.0")
    assert gpu_launcher(*flags).stdout.endswith(
        "\nmemory: 8Gi in pages of 4Ki, by 4 threads, about 0.5 s before the guest runs\n"
    )
    assert json.loads(gpu_launcher(*flags, "--json").stdout)["memory"] == {
        "bytes": 8 << 30,
        "page": 4096,
        "threads": 4,
        "seconds": 0.5,
    }


WHY = (
    "IOMMUFD needs libvirt 12.2 and a kernel with it, which Debian's lack, and with it cards reach each other "
    "only from Linux 6.19 and QEMU 11 on"
)


def test_groups_are_chosen_and_a_confidential_guest_is_said_to_need_the_other() -> None:
    others = (domain for domain in (FIXTURES / "domains").glob("*.xml") if domain.stem != "iommufd")
    assert not any("iommufd" in domain.read_text() for domain in others)
    found = explained("one-gpu", {RTX_2060_VARIABLE: ONE}, is_confidential=True)
    confidential = (
        "A confidential guest with cards needs IOMMUFD (gpu-launcher.dev/vfio): whether this one starts was not tried"
    )
    assert found["vfio"] == {"by": "groups", "why": f"{WHY}. {confidential}"}


def test_iommufd_is_what_the_manifest_asks_for(gpu_launcher: Command) -> None:
    variable = f"{RTX_3090_VARIABLE}=0000:e1:00.0,0000:01:00.0"
    flags = ("explain", FIXTURES / "vms/iommufd.yaml", "--sysfs", FIXTURES / "sysfs/two-rtx-3090", "--env", variable)
    found = json.loads(gpu_launcher(*flags, "--json").stdout)["vfio"]
    assert found["by"] == "IOMMUFD"
    assert found["why"].startswith("gpu-launcher.dev/vfio asks for it; cards reach each other only from Linux 6.19")


def test_the_distance_of_two_cards_is_in_the_json_for_host_and_guest(machine: Machine) -> None:
    environ = {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0"}
    found = explained("two-gpus", environ, read_host(machine("two-rtx-3090")))
    assert json.loads(as_json(found))["distances"] == [
        {
            "between": ["gpu1", "gpu2"],
            "host": "other node",
            "guest": "same root",
            "differs": True,
            "hostWay": "SYS",
            "guestWay": "PHB",
        }
    ]


@pytest.mark.parametrize(
    ("variables", "told", "words"),
    [
        (
            {"FABRIC_PARTITION_3": f"{ONE},{OTHER}"},
            [{"partition": 3, "gpus": [ONE, OTHER], "entries": ["gpu1", "gpu2"], "missing": []}],
            "gpu1, gpu2: partition 3 of the Fabric Manager, with NVLink to each other\n",
        ),
        (
            {"FABRIC_PARTITION_10": ONE, "FABRIC_PARTITION_7": OTHER},
            [
                {"partition": 7, "gpus": [OTHER], "entries": ["gpu1"], "missing": []},
                {"partition": 10, "gpus": [ONE], "entries": ["gpu2"], "missing": []},
            ],
            "gpu1: partition 7 of the Fabric Manager, by itself\ngpu2: partition 10 of the Fabric Manager, by itself\n",
        ),
        (
            {"FABRIC_PARTITION_1": f"{ONE},{THIRD},{OTHER}"},
            [{"partition": 1, "gpus": [ONE, THIRD, OTHER], "entries": ["gpu1", "gpu2"], "missing": [THIRD]}],
            "gpu1, gpu2: a part of partition 1 of the Fabric Manager; the guest does not have 0000:86:00.0\n",
        ),
        ({"FABRIC_PARTITION_5": THIRD, "FABRIC_PARTITION_X": "?"}, [], ""),
    ],
    ids=["one", "two", "not wholly", "another container's"],
)
def test_whether_the_guests_cards_are_a_partition(
    variables: dict[str, str], told: list[dict[str, object]], words: str, machine: Machine
) -> None:
    environ = {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0", **variables}
    found = explained("two-gpus", environ, read_host(machine("two-rtx-3090")))
    assert json.loads(as_json(found))["partitions"] == told
    assert table(found).partition("PHB same root; SYS other node\n")[2].lstrip("\n") == words


def test_a_distance_on_a_host_that_was_not_read_is_not_known() -> None:
    found = explained("two-gpus", {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0"})
    (pair,) = found["distances"]
    assert (pair["host"], pair["hostWay"], pair["guest"], pair["differs"]) == (None, None, "same root", False)
    assert "gpu1  X     -\n" in table(found)
    assert "in the guest" not in table(found).lower()


def test_pairs_that_differ_are_marked_and_counted_by_how_they_do() -> None:
    hgx = case("hgx-a100-8-gpu").world()
    found = table(explained("eight-gpus", dict(hgx.pod.environ), hgx.host))
    assert found.count(" *  ") + found.count(" *\n") == 2 * 28
    assert found.endswith(
        "* 4 pairs: PXB on the host, PHB in the guest\n"
        "* 24 pairs: SYS on the host, PHB in the guest\n"
        "PXB same switch, over several in a row; PHB same root; SYS other node\n"
    )


def test_cards_that_are_as_far_apart_as_on_the_host_are_said_to_be(machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", RTX_3090_VARIABLE: "0000:02:00.0"}
    found = explained("two-cards-of-one-group", environ, read_host(machine("two-gpus-one-group")))
    assert table(found).endswith("\nIn the guest the cards are as far apart as on the host.\nPHB same root\n")


def test_a_card_that_may_not_be_whole_is_said_to_be(machine: Machine) -> None:
    found = explained("one-gpu", {RTX_2060_VARIABLE: "0000:86:00.0"}, read_host(machine("rtx-2060")))
    assert table(found).endswith("\nmay not be whole: gpu gpu1: 0000:86:00.0 is not in sysfs\n")


def test_a_units_other_card_is_below_its_first_at_a_place_of_its_own(machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", VGPU_VARIABLE: VGPU}
    pair, vgpu = explained("unit-of-two-cards", environ, read_host(machine("two-gpus-one-group")))["entries"]
    assert [(each["host"], each["is"], each["guest"]) for each in pair["passed"]] == [
        ("0000:01:00.0", "GPU", "0000:01:00.0"),
        ("0000:01:00.1", "audio", "0000:01:00.1"),
        ("0000:01:00.2", "USB", "0000:01:00.2"),
        ("0000:01:00.3", "UCSI", "0000:01:00.3"),
        ("0000:02:00.0", "GPU", "0000:03:00.0"),
        ("0000:02:00.1", "audio", "0000:03:00.1"),
    ]
    assert (pair["iommuGroup"], vgpu["passed"]) == (
        1,
        [{"host": VGPU, "is": "mediated device", "guest": "0000:02:00.0"}],
    )


def test_the_cards_of_a_unit_are_a_partition_by_one_entry(machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: ONE, VGPU_VARIABLE: VGPU, "FABRIC_PARTITION_3": f"{ONE},0000:02:00.0"}
    found = explained("unit-of-two-cards", environ, read_host(machine("two-gpus-one-group")))
    assert "pair: partition 3 of the Fabric Manager, with NVLink to each other\n" in table(found)


def test_a_mediated_device_is_told_by_its_type_its_group_and_its_parents_node(copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    device = sys / "devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0" / VGPU
    (device / "mdev_type").mkdir(parents=True)
    (device / "mdev_type/name").write_text("GRID T4-1Q\n")
    (device / "iommu_group").symlink_to("../../../../../kernel/iommu_groups/90")
    devices = sys / "bus/mdev/devices"
    devices.mkdir(parents=True)
    (devices / VGPU).symlink_to(f"../../../devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0/{VGPU}")
    (vgpu,) = explained("vgpu-without-graphics", {VGPU_VARIABLE: VGPU}, read_host(sys))["entries"]
    assert (vgpu["iommuGroup"], vgpu["numaNode"], vgpu["passed"][0]["is"]) == (90, 1, "GRID T4-1Q")


def test_a_request_is_told_by_its_claim_and_has_no_variable(machine: Machine) -> None:
    vmi = "dra-without-vgpu"
    found = explained(vmi, {}, read_host(machine("rtx-2060")), gpu="0000:01:00.0")
    (entry,) = found["entries"]
    assert [entry[key] for key in ("resource", "claim", "request", "variable", "alias")] == [
        None,
        "gpus",
        "gpu",
        None,
        "ua-dra-gpu-card",
    ]
    assert "gpu card: from request gpu of claim gpus\n" in table(found)


def test_a_usb_device_has_no_address_in_the_guest_and_no_group() -> None:
    environ = {"USB_RESOURCE_KUBEVIRT_IO_STORAGE": "1:3,2:10", RTX_2060_VARIABLE: "0000:01:00.0"}
    stick, _, key = explained("usb-devices", environ)["entries"]
    assert stick["passed"] == [{"host": "1:3", "is": "USB device", "guest": None}]
    assert (key["alias"], key["iommuGroup"]) == ("ua-usb-host-key", None)


def test_a_manifest_without_devices_says_so_and_still_what_is_left_over() -> None:
    found = explained("no-devices", {RTX_2060_VARIABLE: "0000:01:00.0"})
    assert table(found) == (
        "The manifest has no gpus and no hostDevices.\n"
        "left over: 0000:01:00.0 of PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A\n"
    )


def test_the_page_fits_100_columns() -> None:
    hgx = case("hgx-a100-8-gpu").world()
    for page in (
        table(explained("eight-gpus", dict(hgx.pod.environ), hgx.host)),
        table(explained("two-gpus", {RTX_3090_VARIABLE: TWO})),
    ):
        assert max(map(len, page.splitlines())) <= 100


def test_that_nothing_was_looked_up_is_said_once_of_all_cards() -> None:
    found = table(explained("two-gpus", {RTX_3090_VARIABLE: TWO}))
    assert found.endswith("may not be whole: gpu gpu1, gpu gpu2: was not looked up: there is no --sysfs\n")
    assert found.count("looked up") == 1
