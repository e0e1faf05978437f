"""Every problem of the plugin says what it is about, what is wrong and what to do; docs/troubleshooting.md has it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pci.sysfs.functions import read_host
from plugin.cards.config import SELECTORS, Bind, Config, Groups, Rule, Serve
from plugin.cards.inventory import BY_CONFIG, take_inventory
from plugin.cards.names import PCIIDs
from plugin.config_file import read_config
from plugin.doctor import examine
from plugin.doctor.finding import Check
from program.errors import ProgramError, UserError
from program.problem import Problem, Severity
from tests.breaking import Break, breaks, broken
from tests.compose import SYSFS
from tests.kernel import make_nodes
from tests.plugin.cards.test_broken_sysfs import breakable, write_machine
from tests.processes import ROOT
from tests.snapshots import look_at, snapshot_of

CONFIGS = (
    Config(),
    Config(groups=Groups.TOGETHER),
    Config(serve=Serve.DRA, bind=Bind.WHEN_CLAIMED),
    Config(
        offer=(
            Rule(vendor="10de", pci_class="03", resource="example.com/gpu"),
            Rule(pci_class="02", withhold=True),
            Rule(mdev_type="GRID T4-1Q", prefix="a.b"),
        )
    ),
)

DOCUMENTED = [
    re.compile(".*".join(map(re.escape, re.split(r"\b[A-Z]\b|\.\.\.", message))))
    for row in (ROOT / "docs/troubleshooting.md").read_text().splitlines()
    if row.startswith("| `")
    for message in re.findall("`([^`]+)`", row.split(" | ")[0])
]


def assert_is_whole(problem: Problem, *, may_lack_fix: bool = False) -> None:
    assert problem.subject
    assert problem.wrong
    assert problem.fix or may_lack_fix, problem
    assert "\n" not in str(problem)


def assert_all_are_whole(sys: Path, dev: Path | None, proc: Path | None, config: Config, pci_ids: PCIIDs) -> None:
    try:
        inventory = take_inventory(read_host(sys), config, pci_ids)
        snapshot = look_at(sys, pci_ids, config, **{"dev": dev} if dev else {}, **{"proc": proc} if proc else {})
    except ProgramError as error:
        for problem in error.problems:
            assert_is_whole(problem)
        return
    for device in inventory.devices:
        reason = snapshot_of(sys, pci_ids, config).reason(device)
        if reason is not None:
            problem = Problem(device.id, reason.wrong, reason.fix)
            assert_is_whole(problem, may_lack_fix=reason is BY_CONFIG)
            assert_is_documented(problem)
    for finding in examine(snapshot):
        assert_is_whole(finding.problem, may_lack_fix=finding.severity < Severity.WARNING)
        # What a file should hold is part of what is wrong with it.
        before, _, _ = finding.problem.wrong.partition(" holds ")
        assert "; " not in before or finding.check is Check.SYSFS
        if finding.severity >= Severity.WARNING:
            assert_is_documented(finding.problem)


def assert_is_documented(problem: Problem) -> None:
    assert any(message.search(problem.wrong) for message in DOCUMENTED), problem.wrong


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
@pytest.mark.parametrize("config", CONFIGS)
def test_on_every_machine(name: str, config: Config, pci_ids: PCIIDs, tmp_path: Path) -> None:
    for dev in (None, tmp_path, make_nodes(SYSFS / name, tmp_path / "dev")):
        assert_all_are_whole(SYSFS / name, dev, None, config, pci_ids)


def test_whatever_is_broken(tmp_path: Path, pci_ids: PCIIDs) -> None:
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    write_machine(sys)
    dev = make_nodes(sys, tmp_path / "dev")
    proc.mkdir()
    (proc / "cpuinfo").write_text("vendor_id\t: GenuineIntel\nflags\t\t: vmx\n")

    @settings(max_examples=200)
    @given(found=breaks(breakable(sys)), config=st.sampled_from(CONFIGS), command_line=st.sampled_from(COMMAND_LINES))
    def holds(found: list[Break], config: Config, command_line: str) -> None:
        (proc / "cmdline").write_text(command_line)
        with broken(sys, found):
            assert_all_are_whole(sys, dev, proc, config, pci_ids)

    holds()


COMMAND_LINES = ("", "intel_iommu=off", "iommu=off quiet", "pcie_acs_override=downstream", "intremap=off")

names = st.sampled_from(
    [*SELECTORS, "resource", "prefix", "withhold", "offer", "groups", "prefer", "node_devices", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 20000) | st.sampled_from(["10de", "a/b", "a.b", "withhold", "kvm", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def test_whatever_a_config_says(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    @settings(max_examples=300)
    @given(document=values | st.fixed_dictionaries({"offer": st.lists(st.dictionaries(names, values, max_size=3))}))
    def holds(document: object) -> None:
        path.write_text(yaml.safe_dump(document))
        problem = problem_of(path)
        if problem is not None:
            assert_is_whole(problem)
            assert "; " not in problem.wrong

    holds()


def problem_of(config: Path) -> Problem | None:
    try:
        read_config(config)
    except UserError as error:
        return error.problem
    return None


MAKERS = ("UserError", "Refusal", "Problem", "Hindrance", "_warning", "_error", "_Failed")


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Wherever the plugin makes an error, a problem or a hindrance."""
    for path in [*sorted((ROOT / "plugin").rglob("*.py")), ROOT / "pci/viability.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_no_problem_is_made_without_a_fix() -> None:
    """Also where no test gets: no part is an empty text, and none has the fix in what is wrong."""
    lines = dict(calls())
    assert len(lines) > 60
    for where, call in lines.items():
        assert isinstance(call.func, ast.Name)
        if where.startswith("plugin/doctor/") and call.func.id == "Problem":
            continue  # made from what _fine, _note, _warning and _error are given
        for part in ast.walk(call):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                assert "; " not in part.value, where
        is_empty = [isinstance(part, ast.Constant) and not part.value for part in call.args]
        is_as_configured = "is withheld by the config" in ast.unparse(call) or "is for vGPUs" in ast.unparse(call)
        assert not any(is_empty) or is_as_configured, where


def test_nobody_takes_a_sentence_apart() -> None:
    for folder in ("plugin", "program", "pci"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"(split|partition)\(\"; ?\"\)", path.read_text()), path
