"""The journal: what an older plugin remembered is taken over, and nothing of it is lost or left."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.changes.journal import Former, Journal, JournalFile, VGPUType
from program.errors import Refusal
from tests.plugin.broken_files import BREAKS, OF_ANOTHER_BOOT, OF_NO_BOOT, break_file
from tests.plugin.test_state_files import BOOT, FILES

#: What version 0.1.0 wrote, before it had one file for all of it.
OLDER = FILES / "0.1.0"
NAMES = sorted(file.name for file in OLDER.iterdir())
FORMER = {
    "0000:01:00.0": Former("10de:1f08", "nouveau", None),
    "0000:01:00.1": Former("10de:10f9", None, "vfio-pci"),
    "0000:41:00.0": Former("10de:2b85", "nvidia", None, {"reset_method": "flr bus"}),
}
TAKEN_OVER = Journal(
    BOOT,
    former=FORMER,
    types={"0000:41:00.4": VGPUType(1155, "NVIDIA L40S-24Q")},
    mdevs={"00000000-0000-0000-0000-0000000000a0": "0000:61:00.0"},
    functions={"0000:41:00.0": 16},
)


@pytest.fixture
def journal(tmp_path: Path) -> JournalFile:
    """Of a node whose plugin was of version 0.1.0 until now."""
    shutil.copytree(OLDER, tmp_path, dirs_exist_ok=True)
    return JournalFile(tmp_path, BOOT)


def files(journal: JournalFile) -> list[str]:
    return sorted(file.name for file in journal.state.iterdir())


def test_what_an_older_plugin_remembered_counts_and_is_taken_over_by_the_next_change(journal: JournalFile) -> None:
    assert journal.read() == TAKEN_OVER
    assert files(journal) == NAMES, "who only looks writes nothing"
    journal.change(lambda now: replace(now, unprobed=("0000:61:00.0",)))
    assert journal.read() == replace(TAKEN_OVER, unprobed=("0000:61:00.0",))
    assert files(journal) == ["journal.json"]


def test_settings_of_another_card_in_the_slot_are_not_taken_over(journal: JournalFile) -> None:
    file = journal.state / "former-settings.json"
    file.write_text(file.read_text().replace("10de:2b85", "10de:2204"))
    assert journal.read().former["0000:41:00.0"].settings == {}


def test_what_an_older_plugin_writes_beside_this_one_is_taken_over_too(journal: JournalFile) -> None:
    """As in a rolling update; of one thing the journal knows more."""
    newer = Former("10de:1f08", "nvidia", None)
    journal.write(Journal(BOOT, former={"0000:01:00.0": newer}))
    shutil.copytree(OLDER, journal.state, dirs_exist_ok=True)
    assert journal.read() == replace(TAKEN_OVER, former={**FORMER, "0000:01:00.0": newer})


def test_what_an_older_plugin_remembered_of_another_boot_is_nothing(journal: JournalFile) -> None:
    later = JournalFile(journal.state, "another")
    later.write(later.read())
    assert (later.read(), files(later)) == (Journal("another"), ["journal.json"])


@pytest.mark.parametrize("name", NAMES)
def test_an_older_file_that_is_broken_is_not_taken_for_another(journal: JournalFile, name: str) -> None:
    file = journal.state / name
    text = file.read_text()
    for kind in BREAKS:
        break_file(kind, file, text)
        if kind in OF_NO_BOOT | {OF_ANOTHER_BOOT}:
            assert journal.read() != TAKEN_OVER
        else:
            with pytest.raises(Refusal, match=f"{file}: is not what gpu-plugin wrote"):
                journal.change(lambda now: replace(now, unprobed=("0000:61:00.0",)))
            assert "journal.json" not in files(journal)


def test_a_file_that_cannot_be_removed_is_named(journal: JournalFile) -> None:
    journal.write(Journal(BOOT))
    (journal.state / "vgpus.json").mkdir()
    with pytest.raises(Refusal, match=r"vgpus\.json: cannot be removed: "):
        journal.write(Journal(BOOT))
