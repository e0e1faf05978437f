"""Which cards are told that they may write to each other's memory, and which are refused."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from launcher.hook.kubevirt_domain import read_vmi
from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cards.peer_to_peer import TAKES_CLIQUES, cliques_in, properties_of, without_peer
from pci.address import PCIAddress
from pci.host import Host
from pci.nvml_names import nvml_name
from pci.sysfs.functions import read_host
from program.errors import ProgramError, UserError
from tests.conftest import Command, Machine
from tests.processes import FIXTURES

HGX = ("0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0")
H100 = ("0000:41:00.0", "0000:c1:00.0")
RTX_3090 = ("0000:01:00.0", "0000:e1:00.0")


def _claim(name: str, address: str) -> Claim:
    entry = Entry(kind=EntryKind.GPU, name=name, wants="a.b/gpu")
    return Claim(entry=entry, device=PCIAddress.parse(address), variable=None)


def cards(*addresses: str) -> tuple[GuestCard, ...]:
    return tuple(
        GuestCard(claim=claim, functions=(claim.device,), missing=None)
        for number, address in enumerate(addresses)
        for claim in [_claim(f"gpu{number}", address)]
        if isinstance(claim.device, PCIAddress)
    )


def values(
    host: Host | None, *addresses: str, in_cliques: bool = True, maps_bars: bool = True
) -> Mapping[str, list[str]]:
    found = properties_of(cards(*addresses), host, in_cliques=in_cliques, maps_bars=maps_bars)
    return {alias: [f"{each.name}={each.value}" for each in its] for alias, its in found.items()}


@pytest.fixture
def hgx(machine: Machine) -> Host:
    return read_host(machine("hgx-a100-8-gpu"))


def test_cards_behind_one_switch_are_a_clique(hgx: Host) -> None:
    assert values(hgx, *HGX) == {
        "ua-gpu-gpu0": ["x-nv-gpudirect-clique=0"],
        "ua-gpu-gpu1": ["x-nv-gpudirect-clique=0"],
        "ua-gpu-gpu2": ["x-nv-gpudirect-clique=1"],
        "ua-gpu-gpu3": ["x-nv-gpudirect-clique=1"],
    }


def test_cards_without_a_switch_are_a_clique_by_root_complex(machine: Machine) -> None:
    host = read_host(machine("two-h100"))
    first, second = (host.functions[PCIAddress.parse(each)] for each in H100)
    assert first.root != second.root
    assert values(host, *H100) == {
        "ua-gpu-gpu0": ["x-nv-gpudirect-clique=0"],
        "ua-gpu-gpu1": ["x-nv-gpudirect-clique=1"],
    }
    together = replace(host, functions={**host.functions, second.address: replace(second, root=first.root)})
    assert values(together, *H100)["ua-gpu-gpu1"] == ["x-nv-gpudirect-clique=0"]


def test_nothing_is_set_that_nobody_asked_for(hgx: Host) -> None:
    assert values(hgx, *HGX, in_cliques=False) == {}


def test_no_bar_is_mapped_if_the_vm_says_so() -> None:
    assert values(None, *H100, in_cliques=False, maps_bars=False) == {
        "ua-gpu-gpu0": ["x-no-mmap=true"],
        "ua-gpu-gpu1": ["x-no-mmap=true"],
    }


def refused(host: Host | None, *addresses: str, maps_bars: bool = True) -> str:
    with pytest.raises(ProgramError) as error:
        values(host, *addresses, maps_bars=maps_bars)
    return str(error.value)


def test_a_geforce_is_refused_by_name(machine: Machine) -> None:
    said = refused(read_host(machine("two-rtx-3090")), *RTX_3090)
    assert "0000:01:00.0 is NVIDIA GeForce RTX 3090, none of the data center models" in said
    assert "nccl 2335" in said


def test_one_gpu_has_no_peer(hgx: Host) -> None:
    assert "is for several GPUs of NVIDIA's, and this VM has 1" in refused(hgx, HGX[0])


def test_gpus_that_are_alone_in_their_clique_are_named_and_explain_shows_each_clique(gpu_launcher: Command) -> None:
    given = "PCI_RESOURCE_NVIDIA_COM_GA100_A100_SXM4_40GB=0000:07:00.0,0000:0f:00.0,0000:47:00.0,0000:87:00.0"
    flags = (FIXTURES / "vms/p2p.yaml", "--sysfs", FIXTURES / "sysfs/hgx-a100-8-gpu", "--env", given)
    result = gpu_launcher("explain", *flags)
    assert (
        "gpu0, gpu1: clique 0, may write to each other's memory\n"
        "gpu2: clique 1, has no peer\n"
        "gpu3: clique 2, has no peer\n"
    ) in result.stdout
    assert (
        "warning: gpu-launcher.dev/p2p: gpu 'gpu2' and gpu 'gpu3' have no peer: no other GPU of the VM is behind the "
        "same switch, or without a switch on the same root complex; expected cards behind one switch, "
    ) in result.stderr
    assert json.loads(gpu_launcher("explain", "--json", *flags).stdout)["cliques"] == [
        {"clique": 0, "entries": ["gpu0", "gpu1"]},
        {"clique": 1, "entries": ["gpu2"]},
        {"clique": 2, "entries": ["gpu3"]},
    ]


def test_of_gpus_that_all_have_a_peer_nothing_is_said(hgx: Host) -> None:
    properties = properties_of(cards(*HGX), hgx, in_cliques=True, maps_bars=True)
    assert list(without_peer(cards(*HGX), cliques_in(properties))) == []
    (alone,) = without_peer(cards(*HGX[:3]), cliques_in(dict(list(properties.items())[:3])))
    assert alone.problem.wrong.startswith("gpu 'gpu2' has no peer")


def test_a_virtual_function_is_refused(hgx: Host) -> None:
    first = hgx.functions[PCIAddress.parse(HGX[0])]
    virtual = replace(first, physical_function=first.address)
    assert "is a virtual function" in refused(replace(hgx, functions={**hgx.functions, first.address: virtual}), *HGX)


def test_without_sysfs_it_is_not_known_who_is_near_whom() -> None:
    assert "it is not known which cards are behind one switch; name the node's sysfs" in refused(None, *HGX)


def test_bars_that_are_not_mapped_have_no_peers(hgx: Host) -> None:
    assert "needs BARs that are mapped" in refused(hgx, *HGX, maps_bars=False)


def test_the_property_has_sixteen_numbers(hgx: Host) -> None:
    first = hgx.functions[PCIAddress.parse(HGX[0])]
    many = {
        address: replace(first, address=address, root=f"pci0000:{number:02x}", bridges=())
        for number in range(17)
        for address in [PCIAddress(0, number, 0, 0)]
    }
    assert "more than 16 switches and root complexes" in refused(replace(hgx, functions=many), *map(str, many))


def test_the_table_has_no_geforce() -> None:
    names = {device: nvml_name(f"10de:{device:04x}", "") for device in TAKES_CLIQUES}
    assert names[0x1EB8] == "Tesla T4"
    assert not any("GeForce" in (name or "") for name in names.values())


@pytest.mark.parametrize(("name", "value"), [("p2p", "clique"), ("no-mmap", "true")])
def test_the_hook_refuses_what_kubevirts_domain_cannot_have(name: str, value: str) -> None:
    vmi = {"metadata": {"annotations": {f"gpu-launcher.dev/{name}": value}}}
    with pytest.raises(UserError, match=rf"gpu-launcher\.dev/{name} needs <qemu:override>"):
        read_vmi(json.dumps(vmi).encode())
