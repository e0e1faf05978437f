"""The state files: a plugin reads what the version before it wrote, and takes nothing else for it."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import Function
from plugin.binding.former_drivers import FormerLines, FormerSettings, read_former, settings_file, write_former
from plugin.binding.moves import Former
from plugin.binding.nvml import Identity, read_identities
from plugin.binding.nvml import keep as keep_identities
from plugin.cards.config import Fabric
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice
from plugin.fabric.activations import Activation, Book, book_file
from plugin.fabric.modules import keep, read_module_ids
from plugin.state_files import Busy, StateFile, json_of, locked, locked_within
from program.errors import Refusal
from tests.plugin.binding.test_nvml import tells
from tests.processes import FIXTURES, ROOT

#: As version 0.1.0 writes them.
FILES = FIXTURES / "state"
BOOT = "5f0e"

FORMER = {
    PCIAddress.parse("0000:01:00.0"): Former("10de:1f08", "nouveau", None),
    PCIAddress.parse("0000:01:00.1"): Former("10de:10f9", None, "vfio-pci"),
}
SET = FormerSettings(BOOT, {"0000:41:00.0": FormerLines("10de:2b85", {"reset_method": "flr bus"})})
MODULE_IDS = {PCIAddress.parse("0000:0f:00.0"): 5, PCIAddress.parse("0000:86:00.0"): 1}
BOOK = Book(
    (
        Activation(3, (1, 3), ("0000:07:00.0", "0000:47:00.0"), "default/vm", None, True),
        Activation(9, (5,), ("0000:87:00.0",), None, "UID"),
    ),
    (4,),
)
DEVICE = PreparedDevice("gpu", "pci-0000-41-00-0", "0000:41:00.0", ("0000:41:00.0", "0000:41:00.1"))
PREPARED = {"UID": Prepared("vms", "gpu", True, (DEVICE,))}

CARD = Function(
    address=PCIAddress.parse("0000:41:00.0"), vendor_id=0x10DE, device_id=0x20B2, pci_class=0x030200,
    subsystem_vendor_id=0x10DE, subsystem_device_id=0x1463, driver="vfio-pci", iommu_group=1, numa_node=None,
    root="pci0000:40", bridges=(PCIAddress.parse("0000:40:01.1"),), physical_function=None, vgpu_type=None,
    vfio_device=None,
)  # fmt: skip
UUIDS = {CARD.address: Identity("GPU-8dcd427f-b4c5-4b2a-9f10-000000000001", "NVIDIA A100-SXM4-80GB")}

#: What each has in it, how it is read from a directory, and how it is written to one.
KINDS: dict[str, tuple[object, Callable[[Path], object], Callable[[Path], None]]] = {
    "former-drivers": (FORMER, lambda d: read_former(d, BOOT), lambda d: write_former(d, BOOT, FORMER)),
    "former-settings": (SET, lambda d: settings_file(d).read(), lambda d: settings_file(d).write(SET)),
    "module-ids": (MODULE_IDS, lambda d: read_kept(d), lambda d: keep(d, MODULE_IDS)),
    "nvml": (UUIDS, lambda d: read_uuids(d), lambda d: keep_uuids(d)),
    "partitions": (BOOK, lambda d: book_file(d).read(), lambda d: book_file(d).write(BOOK)),
    "checkpoint": (PREPARED, lambda d: Checkpoint(d, BOOT).read(), lambda d: Checkpoint(d, BOOT).write(PREPARED)),
}
#: What is said of each that is damaged, and how single lines of it are.
DAMAGED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "former-drivers": (
        "is not what bind wrote; remove it",
        [('"id": "10de:1f08",', ""), ('"nouveau"', "7"), ("0000:01:00.0", "gpu"), ('"boot"', '"a": 1, "boot"')],
    ),
    "former-settings": (
        "is not what bind wrote; remove it",
        [('"10de:2b85"', "1"), ('"flr bus"', "7"), ("0000:41:00.0", "gpu"), ('"boot"', '"a": 1, "boot"')],
    ),
    "module-ids": ("has no module IDs in it; expected module IDs by PCI address, in JSON", [("5", "-5"), ("5", "5.5")]),
    "nvml": (
        "is not what bind wrote; remove it",
        [("GPU-8", "GPU-"), ("0000:41", "41"), ('"id"', '"ids"'), ('"10de:20b2"', "1"), ("NVIDIA", "\u001b")],
    ),
    "partitions": (
        "is not what gpu-plugin wrote, and nobody knows who has which partition; end the guests",
        [
            ("true", "1"),
            ("null", "7"),
            ('"others"', '"other"'),
            ('"pod": "default/vm",', ""),
            ("9", "-9"),
            ("5", "true"),
        ],
    ),
    "checkpoint": (
        "is not what the driver wrote, so which cards are taken is not known; end the pods",
        [("true", "false"), ('"version": 1', '"version": 2'), ("41:00.1", "41:00.2"), ("5f0e", "5f0f"), ('"vms"', "1")],
    ),
}
each = pytest.mark.parametrize("name", KINDS)


def read_kept(directory: Path) -> object:
    ids = read_module_ids(Fabric(), directory)
    if ids.faults:
        raise Refusal(ids.faults[0], "", "")
    return ids.by_address


def read_uuids(directory: Path) -> object:
    found = read_identities(directory / "sys", [CARD], proc=directory / "proc", state=directory)
    if found.trouble is not None:
        raise Refusal(*found.trouble)
    return found.by_address


def keep_uuids(directory: Path) -> None:
    root = directory.parent
    tells(root, "GPU-8dcd427f-b4c5-4b2a-9f10-000000000001", str(CARD.address), "NVIDIA A100-SXM4-80GB")
    keep_identities(root / "sys", [replace(CARD, driver="nvidia")], proc=root / "proc", state=directory)
    shutil.rmtree(root / "proc")


@each
def test_what_the_version_before_wrote_is_read_and_written_the_same_again(name: str, tmp_path: Path) -> None:
    value, read, write = KINDS[name]
    assert read(FILES) == value
    write(tmp_path / "new/state")
    assert (tmp_path / f"new/state/{name}.json").read_bytes() == (FILES / f"{name}.json").read_bytes()
    assert [path.name for path in (tmp_path / "new/state").iterdir()] == [f"{name}.json"]


@each
def test_a_file_that_is_damaged_is_not_taken_for_another(name: str, tmp_path: Path) -> None:
    _, read, _ = KINDS[name]
    wrong, damages = DAMAGED[name]
    file = tmp_path / f"{name}.json"
    text = (FILES / file.name).read_text()
    empty = [] if name in ("module-ids", "nvml") else ["{}"]
    whole = [
        "",
        "null",
        "[]",
        text[:-3],
        text[1:],
        "[" * 100_000,
        text + " " * 2_000_000,
        '{"a": 1, ' + text[1:],
        f'{{"a": {"[" * 100_000}{"]" * 100_000}, {text[1:]}',
        *empty,
    ]
    for document in (*whole, *(text.replace(old, new, 1) for old, new in damages)):
        file.write_text(document)
        with pytest.raises(Refusal) as error:
            read(tmp_path)
        assert f"{file}: {wrong}" in str(error.value), document


@each
def test_nothing_written_is_nothing_and_a_directory_in_its_place_is_refused(name: str, tmp_path: Path) -> None:
    _, read, write = KINDS[name]
    assert not read(tmp_path)
    (tmp_path / f"{name}.json").mkdir()
    with pytest.raises(Refusal, match=rf"{name}\.json: cannot be read: Is a directory; .+"):
        read(tmp_path)
    (tmp_path / f"{name}.json").rmdir()
    (tmp_path / f"{name}.json.new").mkdir()
    with pytest.raises(Refusal, match=rf"{name}\.json: cannot be written: Is a directory; .+"):
        write(tmp_path)


def test_what_another_boot_did_is_nothing(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    assert (read_former(tmp_path, "other"), Checkpoint(tmp_path, "other").read()) == ({}, {})


def test_a_checkpoint_is_roots_and_what_has_to_outlive_a_crash_is_on_the_disk(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path, BOOT)._file
    file.write(file.of((FILES / "checkpoint.json").read_bytes()))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert (file.sync, book_file(tmp_path).sync) == (True, True)


def test_a_file_that_is_not_there_costs_no_pydantic(tmp_path: Path) -> None:
    """It takes longer to import than what most commands do."""
    program = (
        "import sys; from pathlib import Path; import plugin.commands.bind, plugin.device_plugin.daemon\n"
        "from plugin.fabric.activations import Book, book_file; from plugin.binding.former_drivers import *\n"
        "state = Path(sys.argv[1]); assert read_former(state, '') == {}; assert book_file(state).read() is None\n"
        "write_former(state, '', {}); book_file(state).write(Book())\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True)


def test_a_file_that_was_not_wholly_written_is_as_before(tmp_path: Path) -> None:
    file = StateFile(path=tmp_path / "file", of=json_of(dict[str, str]), wrong="", fix="")
    file.write({"a": "before"})
    program = (
        "import resource, sys; from pathlib import Path; from plugin.state_files import write_json\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "write_json(Path(sys.argv[1]), {'a': 'x' * 1000}, '', sync=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, file.path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "file: cannot be written: File too large" in result.stderr
    assert file.read() == {"a": "before"}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_is_waited_for_until_a_deadline(tmp_path: Path) -> None:
    path = tmp_path / "state/lock"

    async def wait(seconds: float) -> None:
        async with locked_within(seconds, path, "see its log"):
            pass

    async def live() -> None:
        with locked(path, "is at work", "wait"):
            with pytest.raises(Busy, match=r"lock: is at work; wait"), locked(path, "is at work", "wait"):
                pass
            with pytest.raises(Busy, match=r"lock: is held by another gpu-plugin for 0\.1 s; see its log"):
                await wait(0.1)
            waiting = asyncio.create_task(wait(60))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        await waiting

    asyncio.run(live())
