"""A release: what `make` checks of it, and the workflow that makes it, which nothing here can run to its end."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import BIN, ROOT

WORKFLOW = ROOT / ".github/workflows/release.yaml"
REPOSITORY = "https://git.example/somebody/gpu-launcher"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository that is ready for the release of its version 7.8.9."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/release.py", tmp_path / "deploy")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nversion = "7.8.9"\n[project.urls]\nSource = "{REPOSITORY}"\nIssues = "{REPOSITORY}/issues"\n'
    )
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [7.8.9] - 2026-11-24\n\n### Added\n\n- A thing.\n\n## [7.8.8] - 2026-10-01\n\n- Before.\n"
    )
    return tmp_path


def _make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--silent", "--assume-old=.venv/ready", *arguments]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def test_a_release_whose_tag_changelog_and_urls_agree_is_made_with_its_notes(clone: Path) -> None:
    done = _make(clone, "release-check", "release-notes", "TAG=v7.8.9", f"REPOSITORY={REPOSITORY}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (clone / "release-notes.md").read_text() == "### Added\n\n- A thing.\n"


def test_a_release_of_another_tag_without_notes_or_in_another_repository_is_refused(clone: Path) -> None:
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("[7.8.9] - 2026-11-24", "[Unreleased]"))
    done = _make(clone, "release-check", "TAG=v7.8.8", "REPOSITORY=https://git.example/other/gpu-launcher")
    assert done.returncode == 2
    assert done.stderr.splitlines()[:-1] == [
        "the tag is v7.8.8, and pyproject.toml has version 7.8.9; expected the tag v7.8.9",
        "CHANGELOG.md: has no section of version 7.8.9; expected the line ## [7.8.9] - YEAR-MONTH-DAY",
        f"pyproject.toml: project.urls.Source is {REPOSITORY}; expected a page of https://git.example/other/gpu-launcher",
        (
            f"pyproject.toml: project.urls.Issues is {REPOSITORY}/issues; "
            "expected a page of https://git.example/other/gpu-launcher"
        ),
    ]


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def test_the_workflow_has_no_finding_of_zizmor() -> None:
    """Actions by a commit's hash, no token where none is needed, no text of others in a shell's command."""
    done = subprocess.run(
        [BIN / "zizmor", "--offline", "--quiet", WORKFLOW], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_workflow_calls_make_for_all_that_needs_no_network(jobs: dict[str, Any]) -> None:
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    called = [step["run"].split()[1] for step in jobs["build"]["steps"] if step.get("run", "").startswith("make ")]
    assert called == ["release-check", "release-notes", "test", "image", "dist"]
    assert {*called} <= {*targets}


def test_the_workflow_publishes_nothing_before_all_is_built_tested_and_scanned(jobs: dict[str, Any]) -> None:
    writers = {name for name, job in jobs.items() if "write" in job["permissions"].values()}
    assert writers == {"push", "pypi", "page"}

    def before(name: str) -> set[str]:
        needed = jobs[name].get("needs", [])
        direct = {needed} if isinstance(needed, str) else {*needed}
        return direct.union(*map(before, direct))

    assert all({"build", "scan"} <= before(name) for name in writers)
    assert before("page") == {*jobs} - {"page"}


def test_images_and_chart_are_pushed_and_the_page_names_the_identity_that_has_signed_them(jobs: dict[str, Any]) -> None:
    pushed = {each["name"] for each in jobs["push"]["strategy"]["matrix"]["include"]}
    assert pushed == {
        "charts/gpu-plugin",
        *(f"gpu-{path.parent.name}" for path in (ROOT / "deploy").glob("*/Containerfile")),
    }
    page = (ROOT / "docs/releases.md").read_text()
    (named,) = re.findall(r"(?m)^for name in (.*); do$", page)
    assert {*named.split()} == pushed
    workflow = WORKFLOW.relative_to(ROOT)
    assert f"https://github.com/$REPOSITORY/{workflow}@refs/tags/v$VERSION" in page
    (issuer,) = set(re.findall(r"--certificate-oidc-issuer (\S+)", WORKFLOW.read_text() + page))
    assert issuer == "https://token.actions.githubusercontent.com"


def test_it_is_built_in_the_images_base(jobs: dict[str, Any]) -> None:
    (base,) = re.findall(r"(?m)^ARG BASE=(\S+)", (ROOT / "deploy/plugin/Containerfile").read_text())
    assert jobs["build"]["container"]["image"] == base
