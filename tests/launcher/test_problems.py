"""Every problem of the launcher says what it is about, what is wrong and what to do; docs/troubleshooting.md has those
that are not about a field of the manifest."""

import ast
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from launcher.pipeline.pod import Pod
from launcher.pipeline.start import start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.runtime.embedded import DEFAULT_URI
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS
from program.errors import ProgramError
from program.problem import Problem
from tests.breaking import Break, breaks, broken
from tests.launcher.cases import REFUSED, Case, cases
from tests.launcher.vm.trees import write
from tests.launcher.vms import RTX_3090, RTX_3090_VARIABLE, read_manifest, vmi_text, without_lines
from tests.processes import FIXTURES, ROOT

DOCUMENTED = [
    re.compile(".*".join(map(re.escape, re.split(r"\b[A-Z]\b|\.\.\.", message))))
    for row in (ROOT / "docs/troubleshooting.md").read_text().splitlines()
    if row.startswith("| `")
    for message in re.findall("`([^`]+)`", row.split(" | ")[0])
]
#: A field of the manifest, by its path, which docs/manifest.md explains.
FIELD = re.compile(
    r"(spec|metadata)\b|firmware\.acpi|launchSecurity|devices\.|features\.|ioThreadsPolicy|the manifest$"
)


def assert_are_whole(problems: Iterable[Problem]) -> None:
    for problem in problems:
        assert all(problem), problem
        assert str(problem).isprintable(), problem
        if not FIELD.match(problem.subject) and not problem.subject.startswith("--"):
            assert any(message.search(str(problem)) for message in DOCUMENTED), str(problem)


@pytest.mark.parametrize("refused", sorted(REFUSED.glob("*.yaml")), ids=lambda path: path.stem)
def test_of_a_manifest_that_cannot_be_converted(refused: Path) -> None:
    with pytest.raises(ProgramError) as error:
        cases(refused)[0].xml()
    for problem in error.value.problems:
        subject = without_lines(f"{problem.subject}: ", refused).removeprefix(f"{refused}: ").removesuffix(": ")
        assert_are_whole([problem._replace(subject=subject)])


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_of_what_is_rendered_with_a_warning(case: Case) -> None:
    assert_are_whole(finding.problem for finding in case.world().start(case.vm).all_findings)


@pytest.mark.parametrize("domain", ["", "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n"])
@pytest.mark.parametrize("devices", ["", "      tpm: {}\n      interfaces: [{name: default, passt: {}}]\n"])
def test_of_a_container_with_nothing_in_it(tmp_path: Path, domain: str, devices: str) -> None:
    vm = tmp_path / "vm.yaml"
    text = vmi_text(gpus=[("gpu1", RTX_3090)], domain=domain)
    if devices:
        text = text.replace("      autoattachPodInterface: false\n", devices)
        text += "  networks: [{name: default, pod: {}}]\n"
    vm.write_text(text.replace("{guest: 1Gi}", "{guest: 1Gi, hugepages: {pageSize: 2Mi}}"))
    (tmp_path / "empty").mkdir()
    place = ThisPod(uri=DEFAULT_URI, root=tmp_path / "empty", dev=tmp_path / "empty", proc=tmp_path / "empty")
    sys = FIXTURES / "sysfs" / "two-rtx-3090"
    for value in ("0000:01:00.0", "0000:01:00.0,0000:86:00.0", "0000:86:00.0", "", "x"):
        start = start_of(read_manifest(vm), Pod(environ={RTX_3090_VARIABLE: value, "PATH": ""}, sysfs=sys), place)
        problems = [finding.problem for finding in start.all_findings]
        assert len(problems) >= 3
        empty = f"{tmp_path}/empty"
        assert_are_whole(problem._replace(subject=problem.subject.replace(empty, "/dev")) for problem in problems)


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys = tmp_path_factory.mktemp("broken") / "sys"
    shutil.copytree(FIXTURES / "sysfs" / "two-rtx-3090", sys, symlinks=True)
    return write(
        sys, {"fs/cgroup/cpuset.cpus.effective": "0-7", "kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "9"}
    )


PATHS = [
    *(f"{DEVICES}/0000:01:00.{n}" for n in (0, 1)),
    *(f"{DEVICES}/0000:01:00.{n}/{file}" for n in (0, 1) for file in ("driver", "iommu_group", "vendor", "class")),
    *(f"{DEVICES}/0000:01:00.0/{file}" for file in ("resource", "numa_node")),
    *(IOMMU_GROUPS, f"{IOMMU_GROUPS}/11", "devices/system/cpu", "devices/system/node"),
    *("fs/cgroup/cpuset.cpus.effective", "kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=breaks(PATHS))
def test_of_a_broken_sysfs(breakable: Path, ways: list[Break]) -> None:
    vm = breakable.parent / "vm.yaml"
    vm.write_text(vmi_text(gpus=[("gpu1", RTX_3090)], domain="    cpu: {cores: 2, dedicatedCpuPlacement: true}\n"))
    place = ThisPod(uri=DEFAULT_URI, emulation=True, root=breakable.parent, dev=breakable.parent, proc=None)
    with broken(breakable, ways):
        pod = Pod(environ={RTX_3090_VARIABLE: "0000:01:00.0"}, sysfs=breakable)
        start = start_of(read_manifest(vm), pod, place)
    assert_are_whole(finding.problem for finding in start.all_findings)


MAKERS = {"UserError": 3, "Refusal": 3, "Problem": 3, "error": 3, "warning": 3, "Nonsense": 2, "Below": 3, "Refused": 2}


def sources() -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        yield path, path.read_text()


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield wherever the launcher makes an error, a problem or a finding."""
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_no_problem_is_made_without_a_fix() -> None:
    """Also where no test gets: no part is missing or an empty text, and none has the fix in what is wrong."""
    lines = dict(calls())
    assert len(lines) > 200
    for where, call in lines.items():
        assert isinstance(call.func, ast.Name)
        if not any(isinstance(part, ast.Starred) for part in call.args):
            assert len(call.args) >= MAKERS[call.func.id], where
        assert not any(isinstance(part, ast.Constant) and part.value == "" for part in call.args), where
        for part in ast.walk(call):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                assert "; " not in part.value, where


def test_nobody_takes_a_sentence_apart() -> None:
    for path, text in sources():
        assert not re.search(r"(split|partition)\(\"(; ?|: )\"\)", text), path
