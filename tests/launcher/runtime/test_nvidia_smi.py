"""What nvidia-smi in a guest may say, right or wrong. The guest is its owner's, and may be hostile."""

import pytest

from launcher.runtime.agent import Ended
from launcher.runtime.nvidia_smi import GPUReading, other_driver, parse_output
from pci.address import PCIAddress
from program.errors import Refusal

#: As 580.126.09 prints it; the second GPU has MIG on.
SAID = b"00000000:07:00.0, 580.126.09, 34, 10444, 81559, 41\n00000000:08:00.0, 580.126.09, [N/A], 0, 81559, [N/A]\n"


def said(out: bytes, code: int = 0, err: bytes = b"", signal: int = 0) -> Ended:
    return Ended(code, signal, out, err)


def test_each_gpu_is_told_by_its_address_in_the_guest() -> None:
    assert parse_output(said(SAID)) == {
        PCIAddress(0, 7, 0, 0): GPUReading("580.126.09", 34, 10444 << 20, 81559 << 20, 41),
        PCIAddress(0, 8, 0, 0): GPUReading("580.126.09", None, 0, 81559 << 20, None),
    }
    assert parse_output(said(b"\r\n")) == {}


def test_a_driver_of_another_version_than_the_fabric_manager_is_a_line() -> None:
    found = parse_output(said(SAID))
    assert other_driver(found, "580.126.09") == other_driver(found, None) == other_driver({}, "580.126.09") == ""
    assert other_driver(found, "580.159.03") == (
        "the guest's driver is 580.126.09, and the Fabric Manager of this node 580.159.03: CUDA fails with error 802 "
        "(system not yet initialized) until both are of one version"
    )


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (said(b"No devices were found\n", 6), r"has ended with 6: No devices were found; see in the guest"),
        (said(b"", 127, b"\x1b[2Jno\nsuch"), r"has ended with 127: \\x1b\[2Jno; see"),
        (said(b"", signal=9), "signal 9 has ended it; see"),
        (said(SAID + SAID), "tells of 0000:07:00.0 twice"),
        (said(b"\n" * 257), "says 257 lines; expected one for each GPU, at most 256"),
        (said(b"hello\n"), "says 'hello'; expected pci.bus_id, driver_version,"),
        (said(SAID.replace(b", 41", b", 41, 0")), "expected pci.bus_id"),
        (said(SAID.replace(b"580.126.09", b"<script>")), "expected pci.bus_id"),
        (said(SAID.replace(b" 34,", b" 101,")), "expected pci.bus_id"),
        (said(SAID.replace(b" 34,", b" -1,")), "expected pci.bus_id"),
        (said(SAID.replace(b" 34,", "\u0663,".encode())), "expected pci.bus_id"),
        (said(SAID.replace(b"81559, 41", b"1e9, 41")), "expected pci.bus_id"),
        (said(SAID.replace(b"10444", b"1" * 40)), "expected pci.bus_id"),
        (said(b"x" * 65536), "says '" + "x" * 200 + "';"),
    ],
)  # fmt: skip
def test_anything_else_is_a_refusal_of_one_line(ended: Ended, wrong: str) -> None:
    with pytest.raises(Refusal, match=f"nvidia-smi in the guest: .*{wrong}") as refusal:
        parse_output(ended)
    assert len(str(refusal.value)) < 500
