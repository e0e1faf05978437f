"""The state files: a plugin reads what the version before it wrote, and takes nothing else for it."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import Function
from plugin.cards.config import Fabric
from plugin.changes.journal import Former, Journal, JournalFile, VGPUType
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice
from plugin.fabric.activations import Activation, Owners, owners_file
from plugin.fabric.modules import keep, read_module_ids
from plugin.nvml import Identity, read_identities
from plugin.nvml import keep as keep_identities
from plugin.state_files import Broken, Busy, Lost, StateFile, json_of, locked, locked_within
from program.errors import Refusal
from tests.plugin.broken_files import BREAKS, OF_ANOTHER_BOOT, OF_NO_BOOT, REASONS, break_file
from tests.plugin.test_nvml import tells
from tests.processes import FIXTURES, ROOT

#: As this version writes them; `0.1.0` has those that only that version wrote.
FILES = FIXTURES / "state"
BOOT = "5f0e"

JOURNAL = Journal(
    BOOT,
    former={
        "0000:01:00.0": Former("10de:1f08", "nouveau", None, {"reset_method": "flr bus"}),
        "0000:01:00.1": Former("10de:10f9", None, "vfio-pci"),
    },
    types={"0000:41:00.4": VGPUType(1155, "NVIDIA L40S-24Q")},
    mdevs={"00000000-0000-0000-0000-0000000000a0": "0000:61:00.0"},
    functions={"0000:41:00.0": 16},
)
MODULE_IDS = {PCIAddress.parse("0000:0f:00.0"): 5, PCIAddress.parse("0000:86:00.0"): 1}
OWNERS = Owners(
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
    "journal": (JOURNAL, lambda d: JournalFile(d, BOOT).read(), lambda d: JournalFile(d, BOOT).write(JOURNAL)),
    "module-ids": (MODULE_IDS, lambda d: read_kept(d), lambda d: keep(d, MODULE_IDS)),
    "nvml": (UUIDS, lambda d: read_uuids(d), lambda d: keep_uuids(d)),
    "partitions": (OWNERS, lambda d: owners_file(d).read(), lambda d: owners_file(d).write(OWNERS)),
    "checkpoint": (PREPARED, lambda d: Checkpoint(d, BOOT).read(), lambda d: Checkpoint(d, BOOT).write(PREPARED)),
}
#: What is said of each that is damaged.
WRONG: dict[str, str] = {
    "journal": r"is not what gpu-plugin wrote (\(.+\)); .*remove it: unbind lets the kernel choose the drivers",
    "module-ids": r"has no module IDs in it (\(.+\)); expected module IDs by PCI address, in JSON",
    "nvml": r"is not what bind wrote (\(.+\)); .*remove it, and bind keeps UUIDs anew",
    "partitions": r"is not what gpu-plugin wrote, and nobody knows who has which partition (\(.+\)); .*end the guests",
    "checkpoint": r"is not what the driver wrote, so which cards are taken is not known (\(.+\)); .*end the pods",
}
#: What single values of each become that are as wrong.
DAMAGES: dict[str, list[tuple[str, str]]] = {
    "journal": [
        *[('"nouveau"', "7"), ("0000:01:00.0", "gpu"), ('"flr bus"', "7"), ("1155", "true"), ("0000:41:00.4", "gpu")],
        *[("a0", "x0"), ("16", "1.5"), ('"unprobed": []', '"un": []'), ('"version": 1', '"version": 2')],
    ],
    "module-ids": [("5", "-5"), ("5", "5.5")],
    "nvml": [("GPU-8", "GPU-"), ("0000:41", "41"), ('"10de:20b2"', "1"), ("NVIDIA", "\u001b")],
    "partitions": [("true", "1"), ("null", "7"), ('"others"', '"other"'), ('"pod": "default/vm",', ""), ("9", "-9")],
    "checkpoint": [("true", "false"), ('"version": 1', '"version": 2'), ("41:00.1", "41:00.2"), ('"vms"', "1")],
}
#: Those that are about a boot.
OF_A_BOOT = {"journal", "checkpoint"}
#: What is said of a file that is only a mapping.
OTHERWISE = {("nvml", "of a newer version"), *(("module-ids", kind) for kind in REASONS if "newer" in kind)}
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
def test_a_file_that_is_broken_is_not_taken_for_another_and_the_error_says_how(name: str, tmp_path: Path) -> None:
    _, read, _ = KINDS[name]
    file = tmp_path / f"{name}.json"
    text = (FILES / file.name).read_text()
    for kind in BREAKS:
        if (name, kind) == ("module-ids", "without a field"):
            continue  # it has none
        break_file(kind, file, text)
        says_nothing = {OF_ANOTHER_BOOT} | (OF_NO_BOOT if name != "checkpoint" else set())
        if name in OF_A_BOOT and kind in says_nothing:
            assert read(tmp_path) in ({}, Journal(BOOT)), kind
            continue
        with pytest.raises(Broken if name in OF_A_BOOT | {"partitions"} else Refusal) as error:
            read(tmp_path)
        said = re.fullmatch(f"{file}: {WRONG[name]}.*", str(error.value))
        assert said is not None, (kind, error.value)
        its = "it names no boot" if (name, kind) == ("checkpoint", "torn at once") else REASONS.get(kind, "")
        if (name, kind) not in OTHERWISE:
            assert its in said[1], kind
            is_newer = "which this version does not know" in said[1]
            assert ("use the version of gpu-plugin that wrote it; or " in str(error.value)) is is_newer, kind
        if name == "checkpoint":
            assert isinstance(error.value, Lost) is (kind in OF_NO_BOOT), kind


@each
def test_a_value_that_is_wrong_is_refused(name: str, tmp_path: Path) -> None:
    _, read, _ = KINDS[name]
    text = (FILES / f"{name}.json").read_text()
    for old, new in DAMAGES[name]:
        assert old in text
        (tmp_path / f"{name}.json").write_text(text.replace(old, new, 1))
        with pytest.raises(Refusal, match=WRONG[name]):
            read(tmp_path)


def test_a_field_that_a_version_adds_may_be_missing_in_an_older_file() -> None:
    @dataclass(frozen=True)
    class Later:
        a: str
        b: int = 7

    assert json_of(Later, "b")(b'{"a": ""}') == Later("")
    with pytest.raises(ValueError, match="it lacks the field 'b'"):
        json_of(Later)(b'{"a": ""}')


@each
def test_nothing_written_is_nothing_and_what_cannot_be_replaced_is_refused(name: str, tmp_path: Path) -> None:
    _, read, write = KINDS[name]
    assert read(tmp_path) in ({}, None, Journal(BOOT))
    (tmp_path / f"{name}.json.new").mkdir()
    with pytest.raises(Refusal, match=rf"{name}\.json: cannot be written: Is a directory; .+"):
        write(tmp_path)


@each
def test_what_a_killed_writer_or_somebody_else_left_is_replaced_and_never_followed(name: str, tmp_path: Path) -> None:
    value, read, write = KINDS[name]
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f"{name}.json.new").symlink_to(tmp_path / "theirs")
    write(tmp_path / "new")
    (tmp_path / f"new/{name}.json").rename(tmp_path / f"{name}.json.old")
    (tmp_path / f"new/{name}.json.new").symlink_to(tmp_path / "theirs")
    write(tmp_path / "new")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert read(tmp_path / "new") == value
    assert not (tmp_path / f"new/{name}.json").is_symlink()


def test_what_another_boot_did_is_nothing(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    other = "other"
    assert (JournalFile(tmp_path, other).read(), Checkpoint(tmp_path, other).read()) == (Journal(other), {})


def test_a_file_is_on_the_disk_and_its_directory_too_before_what_it_protects_is_done(tmp_path: Path) -> None:
    calls: list[str] = []

    def hear(_: object, event: str, function: object) -> None:
        if event == "c_call" and function in (os.fsync, os.replace, os.rename):
            calls.append(getattr(function, "__name__", ""))

    for write in (write for _, _, write in KINDS.values()):
        calls.clear()
        sys.setprofile(hear)
        try:
            write(tmp_path)
        finally:
            sys.setprofile(None)
        assert calls == ["fsync", "replace", "fsync"]


def test_a_checkpoint_is_roots(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path, BOOT)._file
    file.write(file.of((FILES / "checkpoint.json").read_bytes()))
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_costs_no_pydantic(tmp_path: Path) -> None:
    """It takes longer to import than what most commands do."""
    program = (
        "import sys; from pathlib import Path; import plugin.commands.bind, plugin.device_plugin.daemon\n"
        "from plugin.fabric.activations import Owners, owners_file; from plugin.changes.journal import *\n"
        "journal = JournalFile(Path(sys.argv[1]), ''); assert journal.read() == Journal('')\n"
        "owners = owners_file(journal.state); assert owners.read() is None\n"
        "journal.write(Journal('')); owners.write(Owners())\n"
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


def test_a_lock_is_no_link_and_a_fifo_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(Refusal, match="cannot be written"), locked(tmp_path / "link", "", ""):
        pass
    assert not (tmp_path / "theirs").exists()
    os.mkfifo(tmp_path / "lock")
    with (
        locked(tmp_path / "lock", "is at work", "wait"),
        pytest.raises(Busy),
        locked(tmp_path / "lock", "is at work", "wait"),
    ):
        pass


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
