"""What the images of both programs are built from: pinned, named the same everywhere, and no more than is imported."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
CONTAINERFILES = [DEPLOY / program / "Containerfile" for program in ("plugin", "launcher")]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
each_program = pytest.mark.parametrize("program", ["plugin", "launcher"])


@each_program
def test_the_version_is_the_projects_wherever_it_stands(program: str) -> None:
    for path in (ROOT / "docs/install.md", DEPLOY / program / "Containerfile"):
        assert set(re.findall(rf"gpu-{program}[:-](\d[\d.]*\d)", path.read_text())) == {VERSION}, path


@each_program
def test_it_has_what_its_program_imports_and_nothing_else(program: str) -> None:
    ours = re.findall(r"^COPY (\w+) /program/", (DEPLOY / program / "Containerfile").read_text(), re.MULTILINE)
    trees = [ast.parse(path.read_text()) for name in ours for path in (ROOT / name).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    modules = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - set(ours)
    distributions = packages_distributions()
    needed = {_normal(name) for module in modules for name in distributions[module]}
    # The image has Debian's of the first; the second is for who asks where a VM could be, and not for the VM.
    # The third comes with pydantic, at the one version that it works with.
    needed -= {"libvirt-python", "cel-expr-python", "pydantic-core"}
    asked = {line for line in _requirements(program).splitlines() if not line.startswith("#")}
    assert asked == needed


@each_program
def test_its_packages_are_pinned_by_hash_to_the_projects_versions(program: str) -> None:
    pins = (DEPLOY / program / "requirements.txt").read_text()
    locked, pinned = _pins((ROOT / "requirements.txt").read_text()), _pins(pins)
    assert pinned.items() <= locked.items(), "run make lock"
    assert set(_requirements(program).splitlines()[1:]) <= set(pinned)
    entries = re.split(r"^(?=[a-z])", pins, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


@each_program
def test_its_base_is_of_no_registry(program: str) -> None:
    bases = re.findall(r"^(?:ARG BASE=|FROM )(\S+)", (DEPLOY / program / "Containerfile").read_text(), re.MULTILINE)
    # Of an image's name, what is before the first slash is a registry.
    assert bases
    assert not [base for base in bases if "/" in base]


def test_their_base_is_one_image_by_its_digest() -> None:
    base, other = (re.findall(r"^ARG BASE=(\S+)", path.read_text(), re.MULTILINE) for path in CONTAINERFILES)
    assert base == other
    assert re.fullmatch(r"debian@sha256:[0-9a-f]{64}", base[0])


def test_a_base_without_a_digest_is_refused() -> None:
    for base in ("debian:trixie-slim", "debian"):
        done = subprocess.run(
            [DEPLOY / "debian.sh"], env={**os.environ, "BASE": base}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (
            1,
            f"BASE: {base} has no digest; expected NAME@sha256:..., which make lock-base writes, or localhost/...\n",
        )


def test_what_is_no_release_of_debians_is_refused_before_anything_is_removed() -> None:
    environ = {**os.environ, "RELEASE": "../deploy"}
    done = subprocess.run([DEPLOY / "build.sh"], env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    expected = "RELEASE: ../deploy is no release of Debian's; expected a name such as forky\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
    assert DEPLOY.is_dir()


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
@pytest.mark.parametrize("directory", ["dependencies", "launcher", "plugin"])
def test_the_lock_of_debians_packages_has_those_that_are_named_and_the_bases(directory: str, architecture: str) -> None:
    lists = [DEPLOY / directory / "packages", DEPLOY / directory / f"packages-{architecture}"]
    named = {line.partition("|")[0] for path in lists if path.exists() for line in path.read_text().splitlines()}
    lock = (DEPLOY / directory / f"debian-{architecture}.lock").read_text()
    entries = re.findall(rf"^[0-9a-f]{{64}}  ([a-z0-9+.-]+)_[^_\s]+_(?:{architecture}|all)\.deb$", lock, re.MULTILINE)
    assert len(entries) == len(set(entries)) == len(lock.splitlines())
    assert named | {"apt", "base-files", "bash", "dpkg", "libc6"} <= {*entries}, "run make lock-debian"


def test_no_step_of_a_build_names_a_host() -> None:
    files = [*CONTAINERFILES, *DEPLOY.glob("*.sh"), *DEPLOY.glob("*/requirements.*"), *DEPLOY.glob("*/*.lock")]
    assert not [path for path in files if "://" in path.read_text() or "--index" in path.read_text()]


def _requirements(program: str) -> str:
    return (DEPLOY / program / "requirements.in").read_text()


def _pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def _normal(distribution: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
