"""Seats, NUMA cells and the hole from a domain and a recorded machine alone, as a sidecar has to find them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.vm.cards.claims import Claim
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.bars import hole
from tests.launcher.cases import Case, case, cases
from tests.launcher.described import LaidOut, laid_out_by
from tests.processes import FIXTURES, ROOT

#: What KubeVirt's converter writes of a VM with two gpus and EFI (virtwrap/converter), as far as it concerns them.
KUBEVIRTS = """
<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>lab_two-gpus</name>
  <memory unit="b">8589934592</memory>
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
    <loader readonly="yes" secure="no" type="pflash">/usr/share/OVMF/OVMF_CODE.fd</loader>
    <nvram>/var/run/kubevirt-private/libvirt/qemu/nvram/two-gpus_VARS.fd</nvram>
  </os>
  <cpu mode="host-model"><topology sockets="1" cores="4" threads="1"/></cpu>
  <vcpu placement="static">4</vcpu>
  <devices>
    <hostdev type="pci" managed="no" mode="subsystem">
      <source><address type="pci" domain="0x0000" bus="0xe1" slot="0x00" function="0x0"/></source>
      <alias name="ua-gpu-gpu1"/>
    </hostdev>
    <hostdev type="pci" managed="no" mode="subsystem">
      <source><address type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x0"/></source>
      <alias name="ua-gpu-gpu2"/>
    </hostdev>
  </devices>
</domain>
"""


def described(golden: Case) -> LaidOut:
    """Of the golden domain, what its manifest's annotations say besides."""
    sysfs = golden.world().pod.sysfs
    assert sysfs is not None
    manifest = next(
        each
        for each in yaml.load_all(golden.vm.read_text(), yaml.CSafeLoader)
        if each and each["kind"] in ("VirtualMachine", "VirtualMachineInstance")
    )
    said = manifest["metadata"].get("annotations") or {}
    return laid_out_by(
        golden.golden.read_text(),
        sysfs,
        said.get("gpu-launcher.dev/companions", "card"),
        topology=said.get("gpu-launcher.dev/topology", "none"),
        is_strict=said.get("gpu-launcher.dev/topology-policy") == "strict",
        seats=yaml.safe_load(said.get("gpu-launcher.dev/seats", "{}")),
    )


def by_name(layout: Layout) -> Layout:
    """With claims that are told by what the domain says of them: nothing of resource and variable."""
    seats = []
    for seat in layout.seats:
        hostdevs = tuple(replace(each, claim=each.claim and told(each.claim)) for each in seat.hostdevs)
        seats.append(replace(seat, claim=told(seat.claim), hostdevs=hostdevs))
    return replace(layout, seats=tuple(seats))


def told(claim: Claim) -> Claim:
    return replace(claim, entry=replace(claim.entry, wants=""), variable=None)


ON_MACHINES = [golden for golden in cases() if "--sysfs" in golden.flags and "<hostdev" in golden.golden.read_text()]


@pytest.mark.parametrize("golden", ON_MACHINES, ids=lambda golden: golden.name)
def test_a_domain_says_enough_for_seats_cells_and_hole(golden: Case) -> None:
    start, found = golden.world().start(golden.vm), described(golden)
    assert start.layout is not None
    assert by_name(found.layout) == by_name(start.layout)
    assert [card.functions for card in found.cards] == [card.functions for card in start.cards]
    assert found.hole == hole(start.guest, start.layout, start.facts)[0]


def test_there_is_something_to_compare() -> None:
    assert len(ON_MACHINES) >= 20
    assert any(described(golden).hole is not None for golden in ON_MACHINES)
    assert {card for golden in ON_MACHINES for card in described(golden).layout.cells}


def test_kubevirts_domain_is_enough() -> None:
    found = laid_out_by(KUBEVIRTS, FIXTURES / "sysfs" / "two-rtx-3090")
    assert [[str(function) for function in card.functions] for card in found.cards] == [
        ["0000:e1:00.0", "0000:e1:00.1"],
        ["0000:01:00.0", "0000:01:00.1"],
    ]
    assert [seat.bus for seat in found.layout.seats] == [1, 2]
    assert [device.alias for seat in found.layout.seats for device in seat.hostdevs] == [
        *("ua-gpu-gpu1", None),
        *("ua-gpu-gpu2", None),
    ]


def test_nothing_of_it_imports_what_reads_manifests(tmp_path: Path) -> None:
    """In a process of its own: this one has read manifests."""
    golden = case("topology-mirror")
    asked = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.launcher.described import laid_out_by\n"
        f"found = laid_out_by(Path({str(golden.golden)!r}).read_text(), Path({str(golden.world().pod.sysfs)!r}),"
        " topology='mirror')\n"
        "print(len(found.layout.seats), len(found.layout.cells))\n"
        "print(sorted(name for name in sys.modules if name in ('pydantic', 'yaml', 'launcher.vm.spec')))\n"
    )
    answer = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "8 4\n[]\n"
