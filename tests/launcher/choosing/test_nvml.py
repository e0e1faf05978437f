"""NVML's names and UUIDs as people have them in their manifests, where a cluster has a card of each of 44 models."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.choosing.cluster import Cluster, cluster_of
from launcher.choosing.fit import as_text, fit_of
from launcher.choosing.names import refuse_unknown_ids
from launcher.vm.cards.annotations import read_selection
from pci.address import PCIAddress
from pci.host import Function
from plugin.cards.config import Serve
from plugin.cards.inventory import Device
from plugin.dra.slices import attributes, capacity
from plugin.nvml import UNKNOWN, Identity
from program.errors import Nonsense, UserError
from tests.conftest import Command
from tests.launcher.choosing.hami import entries

#: IDs of the device, and of the board where it decides; the name in pci.ids of August 2026; NVML's.
MODELS = (
    ("13f2", "", "Tesla M60", "Tesla M60"),
    ("15f8", "", "Tesla P100 PCIe 16GB", "Tesla P100-PCIE-16GB"),
    ("1b38", "", "Tesla P40", "Tesla P40"),
    ("1db1", "", "Tesla V100 SXM2 16GB", "Tesla V100-SXM2-16GB"),
    ("1db5", "", "Tesla V100 SXM2 32GB", "Tesla V100-SXM2-32GB"),
    ("1db4", "", "Tesla V100 PCIe 16GB", "Tesla V100-PCIE-16GB"),
    ("1db6", "", "Tesla V100 PCIe 32GB", "Tesla V100-PCIE-32GB"),
    ("1db3", "", "Tesla V100 FHHL 16GB", "Tesla V100-FHHL-16GB"),
    ("1eb1", "", "Quadro RTX 4000", "Quadro RTX 4000"),
    ("1eb8", "", "Tesla T4", "Tesla T4"),
    ("1e30", "10de:12ba", "Quadro RTX 6000/8000", "Quadro RTX 6000"),
    ("1e30", "10de:129e", "Quadro RTX 6000/8000", "Quadro RTX 8000"),
    ("1e78", "10de:13d9", "Quadro RTX 6000/8000", "Quadro RTX 6000"),
    ("1e78", "10de:13d8", "Quadro RTX 6000/8000", "Quadro RTX 8000"),
    ("20b0", "", "A100 SXM4 40GB", "NVIDIA A100-SXM4-40GB"),
    ("20b2", "", "A100 SXM4 80GB", "NVIDIA A100-SXM4-80GB"),
    ("20f1", "", "A100 PCIe 40GB", "NVIDIA A100-PCIE-40GB"),
    ("20b5", "", "A100 PCIe 80GB", "NVIDIA A100 80GB PCIe"),
    ("20f3", "", "A800-SXM4-80GB", "NVIDIA A800-SXM4-80GB"),
    ("20b7", "", "A30 PCIe", "NVIDIA A30"),
    ("2236", "", "A10", "NVIDIA A10"),
    ("2237", "", "A10G", "NVIDIA A10G"),
    ("25b6", "10de:14a9", "A2 / A16", "NVIDIA A16"),
    ("25b6", "10de:157e", "A2 / A16", "NVIDIA A2"),
    ("2235", "", "A40", "NVIDIA A40"),
    ("2230", "", "RTX A6000", "NVIDIA RTX A6000"),
    ("2330", "", "H100 SXM5 80GB", "NVIDIA H100 80GB HBM3"),
    ("2331", "", "H100 PCIe", "NVIDIA H100 PCIe"),
    ("2321", "", "H100L 94GB", "NVIDIA H100 NVL"),
    ("2324", "", "H800", "NVIDIA H800"),
    ("2329", "", "H20", "NVIDIA H20"),
    ("2335", "", "H200 SXM 141GB", "NVIDIA H200"),
    ("233b", "", "H200 NVL", "NVIDIA H200 NVL"),
    ("2342", "10de:1809", "GH200 120GB / 480GB", "NVIDIA GH200 480GB"),
    ("2901", "", "B200", "NVIDIA B200"),
    ("27b6", "", "L2", "NVIDIA L2"),
    ("27b8", "", "L4", "NVIDIA L4"),
    ("26b5", "", "L40", "NVIDIA L40"),
    ("26b9", "", "L40S", "NVIDIA L40S"),
    ("26b1", "", "RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada Generation"),
    ("2bb5", "", "RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    ("2204", "", "GeForce RTX 3090", "NVIDIA GeForce RTX 3090"),
    ("2684", "", "GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ("2b85", "", "GeForce RTX 5090", "NVIDIA GeForce RTX 5090"),
)


def uuid(number: int) -> str:
    return f"GPU-8dcd427f-b4c5-4b2a-9f10-{number:012}"


def card(number: int, identity: Identity = UNKNOWN, ids: str = "10de:2204", board: str = "", name: str = "") -> Any:
    """A card in a node's slice, as the plugin publishes it."""
    vendor, device = (int(part, 16) for part in ids.split(":"))
    board_vendor, board_device = (int(part, 16) for part in (board or "10de:0001").split(":"))
    function = Function(
        address=PCIAddress(0, number + 1, 0, 0), vendor_id=vendor, device_id=device, pci_class=0x030200,
        subsystem_vendor_id=board_vendor, subsystem_device_id=board_device, driver="vfio-pci", iommu_group=number,
        numa_node=None, root="pci0000:00", bridges=(), physical_function=None, vgpu_type=None, vfio_device=None,
    )  # fmt: skip
    model = f"GX100 [{name}]" if name else ids
    resource = f"nvidia.com/{device:04x}"
    unit = Device(functions=(function,), lead=function, model=model, resource=resource, serve=Serve.DRA, withheld=None)
    published = {name: {"value": value} for name, value in capacity(unit).items()}
    return {"name": f"card-{number}", "attributes": attributes(unit, "node", {}, identity), "capacity": published}


def slices_of(*cards: Any) -> list[Any]:
    """A node of its own for each card, of the card's name."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": each["name"]},
            "spec": {
                "driver": "gpu-launcher.dev",
                "nodeName": each["name"],
                "pool": {"name": each["name"], "generation": 1, "resourceSliceCount": 1},
                "devices": [each],
            },
        }
        for each in cards
    ]


def cluster(*cards: Any) -> Cluster:
    return cluster_of(slices_of(*cards))


def fits(where: Cluster, word: str, value: str) -> set[int]:
    """The numbers of the cards that a VM with this annotation could get."""
    fit = fit_of("d/vm", None, entries(1), read_selection({f"nvidia.com/{word}": value}), (), where)
    return {int(placement.node.removeprefix("card-")) for placement in fit.fitting}


EVERY = cluster(
    *(
        card(number, ids=f"10de:{device}", board=board, name=name)
        for number, (device, board, name, _) in enumerate(MODELS)
    )
)


def as_hami_has_it(name: str) -> str:
    """As HAMi's device plugin writes a model to its node."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def by_hami(word: str) -> set[int]:
    """The models that HAMi would take for a word; where it has blanks, NVIDIA's labels have hyphens."""

    def plain(text: str) -> str:
        return text.upper().replace("-", " ")

    return {number for number, (*_, name) in enumerate(MODELS) if plain(word) in plain(as_hami_has_it(name))}


def test_a_name_of_nvmls_chooses_and_excludes_the_models_that_it_does_in_hami() -> None:
    every = set(range(len(MODELS)))
    assert len(every) == 44
    for number, (*_, name) in enumerate(MODELS):
        label, bare = name.replace(" ", "-"), name.partition(" ")[2]
        for word in (label, as_hami_has_it(name), bare.lower()):
            assert number in by_hami(word), word
            assert fits(EVERY, "use-gputype", word) == by_hami(word), word
        for word in (label, as_hami_has_it(name)):
            assert fits(EVERY, "nouse-gputype", word) == every - by_hami(word), word


@pytest.mark.parametrize(
    ("word", "models"),
    [
        ("H100 SXM5", ["NVIDIA H100 80GB HBM3"]),  # pci.ids'
        ("A100 PCIe 80GB", ["NVIDIA A100 80GB PCIe"]),
        ("SXM4-80GB", ["NVIDIA A100-SXM4-80GB", "NVIDIA A800-SXM4-80GB"]),
        ("80GB HBM3", ["NVIDIA H100 80GB HBM3"]),
        ("NVIDIA-Tesla V100-SXM2-32GB", ["Tesla V100-SXM2-32GB"]),  # as HAMi writes it to a node
        ("NVIDIA-NVIDIA A30", ["NVIDIA A30"]),
        ("A16", ["NVIDIA A16"]),
        ("NVIDIA", [name for *_, name in MODELS]),
        ("NVIDIA-Quadro RTX 6000", ["Quadro RTX 6000"] * 2),
        ("GH200 120GB", []),
        ("GX100", []),
    ],
)
def test_a_part_of_a_name_is_enough_pci_ids_name_too(word: str, models: list[str]) -> None:
    found = fits(EVERY, "use-gputype", word)
    assert [MODELS[number][3] for number in sorted(found)] == models
    assert fits(EVERY, "nouse-gputype", word) == set(range(len(MODELS))) - found


def test_a_card_without_a_name_may_be_of_any_excluded_type() -> None:
    nameless = cluster(card(1, ids="10de:3fff"), card(2, Identity(None, "NVIDIA B500"), ids="10de:3fff"))
    assert fits(nameless, "nouse-gputype", "B400") == {2}
    assert fits(nameless, "use-gputype", "b500") == {2}


KNOWN = cluster(card(1, Identity(uuid(1), None)), card(2, Identity(uuid(2), None)), card(3, ids="1002:744c"))
PARTLY = cluster(card(1, Identity(uuid(1), None)), card(2), card(3, ids="1002:744c"))


def test_an_uuid_of_nvmls_is_one_card() -> None:
    for where in (KNOWN, PARTLY):
        assert fits(where, "use-gpuuuid", uuid(1)) == {1}
    assert fits(KNOWN, "nouse-gpuuuid", uuid(1)) == {2}
    assert fits(KNOWN, "nouse-gpuuuid", uuid(9)) == {1, 2}


def test_an_uuid_of_nvmls_may_lack_its_gpu_as_exporters_of_metrics_write_it() -> None:
    bare = uuid(1).removeprefix("GPU-")
    assert fits(KNOWN, "use-gpuuuid", bare) == {1}
    assert fits(KNOWN, "nouse-gpuuuid", bare) == {2}
    assert fits(PARTLY, "nouse-gpuuuid", bare) == set()
    with pytest.raises(UserError, match=f"use-gpuuuid names {uuid(9)}, which no card of the cluster has"):
        fits(KNOWN, "use-gpuuuid", uuid(9).removeprefix("GPU-"))
    place = place_of(card(1))
    assert (fits(KNOWN, "use-gpuuuid", place), fits(KNOWN, "nouse-gpuuuid", place)) == ({1}, {2})
    refuse_unknown_ids(read_selection({"nvidia.com/nouse-gpuuuid": place}), None)


def place_of(published: Any) -> str:
    found = published["attributes"]["uuid"]["string"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("H1OO", "NVIDIA H100, NVIDIA H100 NVL, NVIDIA H20 NVL16"),
        ("V-100", "NVIDIA Tesla V100 FHHL 16GB, NVIDIA Tesla V100 PCIe 16GB, NVIDIA Tesla V100 PCIe 32GB"),
        ("RTX3090", "NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 3090 Ti"),
        ("Hopper", "NVIDIA H800 PCIe, NVIDIA H100 PCIe, NVIDIA GeForce RTX 4080 SUPER"),
    ],
)
def test_a_name_that_nothing_is_called_is_noted_with_the_nearest(word: str, nearest: str) -> None:
    selection = read_selection({"nvidia.com/nouse-gputype": f"A100,{word}"})
    (note,) = fit_of("d/vm", None, entries(1), selection, (), EVERY).notes
    said = f"nvidia.com/nouse-gputype: no card here, and no known model, is called {word!r}; the nearest: {nearest}"
    assert note == said


def test_a_list_of_names_that_nothing_is_called_has_a_few_notes() -> None:
    selection = read_selection({"nvidia.com/nouse-gputype": ",".join(f"X{number}" for number in range(99))})
    assert len(fit_of("d/vm", None, entries(1), selection, (), EVERY).notes) == 3


def test_a_card_whose_uuid_is_not_known_is_never_the_one_that_may_be_excluded() -> None:
    assert fits(PARTLY, "nouse-gpuuuid", uuid(1)) == set()
    text = as_text(fit_of("d/vm", None, entries(1), read_selection({"nvidia.com/nouse-gpuuuid": uuid(1)}), (), PARTLY))
    assert f"excluded by nvidia.com/nouse-gpuuuid '{uuid(1)}': its NVML UUID is not known" in text


@pytest.mark.parametrize("word", ["use-gpuuuid", "nouse-gpuuuid"])
def test_an_uuid_that_a_card_may_have_is_refused_with_where_to_look(word: str) -> None:
    wish = read_selection({f"nvidia.com/{word}": f"{uuid(1)},{uuid(9)}"})
    with pytest.raises(UserError) as refused:
        fit_of("d/vm", None, entries(1), wish, (), PARTLY)
    assert str(refused.value) == (
        f"metadata.annotations: nvidia.com/{word} names {uuid(9)}, which may be of one of these, whose NVML UUID is "
        "not known: card-2 of card-2; run nvidia-smi -L while NVIDIA's driver has the card, then gpu-plugin bind "
        "(docs/choosing.md#nvmls-uuids)"
    )
    with pytest.raises(
        UserError, match=r"names GPU-.*, and which card has NVML's UUID is not known here; .* --cluster "
    ):
        refuse_unknown_ids(wish, None)


def test_an_uuid_that_no_card_can_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"which no card of the cluster has"):
        fits(KNOWN, "use-gpuuuid", uuid(9))
    with pytest.raises(Nonsense, match=r"is no card's UUID; expected a whole UUID in lower case: GPU-"):
        fits(KNOWN, "nouse-gpuuuid", uuid(1).upper())


def test_pod_is_told_of_the_cluster(gpu_launcher: Command, tmp_path: Path) -> None:
    vm, slices = tmp_path / "vm.yaml", tmp_path / "slices.json"
    vm.write_text(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n"
        f"metadata: {{name: vm, annotations: {{nvidia.com/nouse-gpuuuid: {uuid(1)}}}}}\n"
        "spec: {domain: {memory: {guest: 1Gi}, devices: {gpus: [{name: gpu, deviceName: nvidia.com/gpu}]}}}\n"
    )
    slices.write_text(json.dumps({"items": slices_of(card(1, Identity(uuid(1), None)), card(2))}))
    for arguments, code, said in (
        (
            ("--dra",),
            2,
            f"metadata.annotations: nvidia.com/nouse-gpuuuid names {uuid(1)}, and which card has NVML's UUID",
        ),
        (("--dra", "--cluster", str(slices)), 0, ""),
        (("--cluster", str(slices)), 2, "--cluster: is for --dra"),
    ):
        result = gpu_launcher("pod", vm, "--image", "x", *arguments)
        assert (result.returncode, said in result.stderr) == (code, True), result.stderr
        assert (f'nvmlUUID.orValue("") in ["{uuid(1)}"]' in result.stdout) is (code == 0)
