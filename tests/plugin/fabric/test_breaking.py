"""Each rule is broken on purpose in a copy of the plugin, and the test of that rule fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

OWNING, CHOOSING, LIBRARY = "owning", "choosing", "library"

#: What is done, to which module, text by text, and which test of test_rules.py has to notice.
BREAKS: dict[str, tuple[str, dict[str, str], str]] = {
    "1: the order of buses is taken for the modules": (
        CHOOSING,
        {
            "ids.of(gpu.address for device in inventory.devices for gpu in gpus(device, ids))": "ModuleIDs("
            "{gpu.address: n for n, gpu in enumerate((g for d in inventory.devices for g in gpus(d, ids)), start=1)})"
        },
        "cards_are_a_partition_by_their_module_ids",
    ),
    "2: a card of unknown ID is as good as any": (
        CHOOSING,
        {"return not self.is_wholly_known and any(": "return False and any("},
        "a_card_of_unknown_id_works_by_itself",
    ),
    "3: an error of the manager's is passed over": (
        OWNING,
        {"                await self._undo(manager, partition)\n            raise\n": "                pass\n"},
        "an_allocation_fails_where_the_activation_does",
    ),
    "4: nobody waits for anybody": (
        OWNING,
        {
            "async with self._mine, locked(self._state, _LOCK_WITHIN) as lock:": "if True:",
            "yield Manager(settings, lock)": "yield Manager(settings)",
        },
        "requests_at_once_do_not_take_from_each_other",
    ),
    "4: a manager that is starting is not asked again": (
        OWNING,
        {"_TRIES = 3": "_TRIES = 1"},
        "a_manager_that_is_just_starting_is_asked_again",
    ),
    "5: what is active is taken for one's own": (
        OWNING,
        {
            "for stranger in self.sight.others:": "for stranger in ():",
            "self._write(self.sight.book.without(partition.id))\n            elif": "return True\n            elif",
        },
        "a_partition_that_another_activated_is_neither_taken_nor_evicted",
    ),
    "5: whoever is in the way is evicted": (
        OWNING,
        {"        if not is_gone:\n": "        if False:\n"},
        "cards_of_a_pod_that_is_still_listed_are_not_given_out_anew",
    ),
    "6: a list of the kubelet's is always whole": (
        OWNING,
        {"return self._own_pod is None or self._own_pod in listed.pods": "return True"},
        "a_kubelet_that_does_not_list_all_pods_says_nothing_of_any",
    ),
    "6: a pod is gone at once": (
        OWNING,
        {"if now - since >= patience and": "if"},
        "a_pod_has_to_be_missed_twice",
    ),
    "6: what nobody here activated is tidied up": (
        OWNING,
        {
            "            troubles = {\n": "            for each in self.sight.others:\n"
            "                await manager.deactivate(each)\n            troubles = {\n"
        },
        "an_active_partition_of_nobody_known_is_left_alone",
    ),
    "7: it is written down afterwards": (
        OWNING,
        {"        self._write(self.sight.book.having(new))\n": ""},
        "it_is_written_down_before_it_is_activated",
    ),
    "7: what the manager has lost stays lost": (
        OWNING,
        {"        elif not partition.is_active:\n": "        elif False:\n"},
        "a_manager_that_has_lost_its_partitions_gets_them_again",
    ),
    "7: what another has active is not given back": (
        OWNING,
        {", *book.others})": "})"},
        "a_manager_that_resumes_gets_its_list",
    ),
    "8: the manager's numbers are believed": (
        LIBRARY,
        {"if count > len(items):": "if False:"},
        "more_than_there_can_be_is_no_answer",
    ),
    "9: a partition is looked up by size and one GPU": (
        CHOOSING,
        {
            "        if not modules or modules in self.table.by_modules:\n            return self.table.by_modules.get("
            "modules)\n": "        if modules:\n            return next(each for each in self.table.partitions "
            "if len(each.modules) == len(modules) and min(modules) in each.modules)\n"
        },
        "eight_of_sixteen_gpus",
    ),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_noticed(rule: str, tmp_path: Path) -> None:
    module, replacements, noticing = BREAKS[rule]
    for name in ("plugin", "program", "pci", "tests/fabric", "tests/plugin/fabric"):
        shutil.copytree(ROOT / name, tmp_path / name)  # with its bytecode, which goes by the files' times
    for name in ("tests/__init__.py", "tests/processes.py", "tests/plugin/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests/fixtures").symlink_to(ROOT / "tests/fixtures")
    path = tmp_path / "plugin" / "fabric" / f"{module}.py"
    text = path.read_text()
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plugins, "-k", noticing, "tests/plugin/fabric/test_rules.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 failed" in result.stdout
