import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.preflight import LockedMemory, locked_memory, locked_memory_shortfall
from tests.processes import ROOT

MIB = 1 << 20


@pytest.mark.parametrize(
    ("allowed", "enough"),
    [
        (LockedMemory(limit=None, can_raise=False), True),
        (LockedMemory(limit=1280 * MIB, can_raise=False), True),
        (LockedMemory(limit=1280 * MIB - 1, can_raise=False), False),
        (LockedMemory(limit=8 * MIB, can_raise=True), True),
    ],
)
def test_a_guest_needs_its_memory_and_a_gibibyte(allowed: LockedMemory, enough: bool) -> None:
    assert (locked_memory_shortfall(256 * MIB, allowed) is None) == enough


def test_the_shortfall_is_said_in_numbers_with_what_mends_it() -> None:
    said = locked_memory_shortfall(256 * MIB, LockedMemory(limit=8 * MIB, can_raise=False))
    assert said is not None
    assert "1280 MiB with libvirt's reserve, and this container may lock 8 MiB" in said
    assert "the capability SYS_RESOURCE" in said
    assert "LimitMEMLOCK=infinity" in said


def test_the_limit_is_this_processs_own() -> None:
    program = "from launcher.preflight import locked_memory; print(locked_memory().limit)"
    done = subprocess.run(
        ["prlimit", f"--memlock={64 * 1024}:{64 * 1024}", sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "65536\n"


@pytest.mark.parametrize(("effective", "can_raise"), [("0000000001000000", True), ("0000000000ffffff", False)])
def test_the_capability_is_bit_24(tmp_path: Path, effective: str, can_raise: bool) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{effective}\n")
    assert locked_memory(tmp_path).can_raise == can_raise
    assert locked_memory(tmp_path).limit in (None, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
