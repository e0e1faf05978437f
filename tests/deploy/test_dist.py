"""`make dist`: the files of a release, as deploy/dist.sh leaves them; without the images, which tests/image builds."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
WHEEL = f"gpu_launcher-{VERSION}-py3-none-any.whl"
SDIST = f"gpu_launcher-{VERSION}.tar.gz"
BASES = f"gpu-launcher-deploy-{VERSION}.tar.gz"
SBOM = f"gpu-launcher-{VERSION}.cdx.json"
#: 2026-11-22, in the middle of a minute.
MOMENT = {"SOURCE_DATE_EPOCH": "1795340007"}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, to which somebody has added an image."""
    out = tmp_path_factory.mktemp("dist")
    (out / "gpu-plugin.tar").write_bytes(b"an image")
    command: list[str | Path] = [ROOT / "deploy/dist.sh", out, "dist/gpu-plugin.tar"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **MOMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_it_has_each_file_and_its_checksum(released: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (released / "SHA256SUMS").read_text().splitlines())
    assert {*sums} == {WHEEL, SDIST, BASES, SBOM, "gpu-plugin.tar"}
    assert {path.name for path in released.iterdir()} == {*sums, "SHA256SUMS"}
    for name, expected in sums.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == expected


def test_the_same_commit_gives_the_same_bytes_in_another_place_at_another_time(released: Path, tmp_path: Path) -> None:
    environ = {**os.environ, **MOMENT, "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path)}
    out = tmp_path / "again"
    done = subprocess.run(
        ["sh", "-c", f"umask 077; exec deploy/dist.sh '{out}'"], cwd=ROOT, env=environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in (WHEEL, SDIST, BASES, SBOM):
        assert (out / name).read_bytes() == (released / name).read_bytes(), name


def test_the_sdist_has_the_programs_alone_and_gives_the_wheel(released: Path, tmp_path: Path) -> None:
    with tarfile.open(released / SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {path.name for path in source.iterdir()} == {
        *("launcher", "plugin", "drawing", "program", "pci", "templates"),
        *("LICENSE", "README.md", "CHANGELOG.md", "PKG-INFO", "pyproject.toml", ".gitignore"),
    }
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(build, cwd=source, env={**os.environ, **MOMENT}, check=True, capture_output=True)
    assert (tmp_path / "dist" / WHEEL).read_bytes() == (released / WHEEL).read_bytes()


def test_the_bases_are_whole_and_name_the_images_of_the_version(released: Path, tmp_path: Path) -> None:
    with tarfile.open(released / BASES) as archive:
        archive.extractall(tmp_path, filter="data")
    (bases,) = tmp_path.iterdir()
    found = sorted(bases.rglob("kustomization.yaml"))
    assert {path.relative_to(bases) for path in found} == {
        path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy").rglob("kustomization.yaml")
    }
    tags = set()
    for path in found:
        kustomization = yaml.safe_load(path.read_text())
        generated = [name for each in kustomization.get("configMapGenerator", []) for name in each["files"]]
        patches = [patch["path"] for patch in kustomization.get("patches", []) if "path" in patch]
        for name in (
            *kustomization.get("resources", []), *kustomization.get("components", []), *patches, *generated
        ):  # fmt: skip
            assert (path.parent / name).exists(), f"{path}: {name}"
        tags |= {image["newTag"] for image in kustomization.get("images", []) if "newTag" in image}
    assert tags == {VERSION}


def test_the_sbom_has_what_the_wheel_asks_for_at_the_versions_that_are_tested(released: Path) -> None:
    # Not above: every worker of pytest would import them, which takes a second and a half.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (released / SBOM).read_text()
    sbom = json.loads(text)
    assert sbom["bomFormat"] == "CycloneDX"
    assert JsonStrictValidator(SchemaVersion.from_version(sbom["specVersion"])).validate_str(text) is None
    assert sbom["metadata"]["component"]["version"] == VERSION
    versions = {_normal(one["name"]): one["version"] for one in sbom["components"]}
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    assert {_normal(re.split(r"[<>=]", one)[0]) for one in PROJECT["dependencies"]} <= {*versions}
    assert versions.items() <= locked.items()
    assert not re.search(rf"file:|/tmp|{ROOT}", text)


def _normal(distribution: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
