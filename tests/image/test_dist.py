"""`make dist`: the files of a release, as deploy/dist.sh leaves them; without the images, which tests/image builds."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft7Validator

from tests.conftest import Shared
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
WHEEL = f"gpu_launcher-{VERSION}-py3-none-any.whl"
SDIST = f"gpu_launcher-{VERSION}.tar.gz"
PLUGIN = f"kubectl-gpuvm-{VERSION}.tar.gz"
KREW = "gpuvm.yaml"
BASES = f"gpu-launcher-deploy-{VERSION}.tar.gz"
CHART, CHART_AS_OCI = f"gpu-plugin-{VERSION}.tgz", f"gpu-plugin-chart-{VERSION}.tar"
SITE = f"gpu-launcher-site-{VERSION}.tar.gz"
SBOM = f"gpu-launcher-{VERSION}.cdx.json"
IMAGE_SBOMS = [
    f"gpu-{program}-image-{VERSION}-{architecture}.cdx.json"
    for program in ("launcher", "plugin")
    for architecture in ("amd64", "arm64")
]
FILES = (WHEEL, SDIST, BASES, CHART, CHART_AS_OCI, PLUGIN, KREW, SITE, SBOM, *IMAGE_SBOMS)
#: 2026-11-22, in the middle of a minute.
MOMENT = {"SOURCE_DATE_EPOCH": "1795340007"}


@pytest.fixture(scope="module")
def released(shared: Shared) -> Path:
    """A release, to which somebody has added an image."""

    def release(out: Path) -> None:
        (out / "gpu-plugin.tar").write_bytes(b"an image")
        command: list[str | Path] = [ROOT / "deploy/dist.sh", out, "dist/gpu-plugin.tar"]
        environ = {**os.environ, **MOMENT}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return shared("dist", release)


def unpack(archive: Path, directory: Path) -> None:
    """By tar: tarfile has no filters in Debian 12's Python 3.11.2, and warns without one in newer Pythons."""
    subprocess.run(["tar", "--extract", "--no-same-owner", "--file", archive, "--directory", directory], check=True)


def test_it_has_each_file_and_its_checksum(released: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (released / "SHA256SUMS").read_text().splitlines())
    assert {*sums} == {*FILES, "gpu-plugin.tar"}
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
    for name in FILES:
        assert (out / name).read_bytes() == (released / name).read_bytes(), name


def test_the_sdist_has_the_programs_alone_and_gives_the_wheel(released: Path, tmp_path: Path) -> None:
    unpack(released / SDIST, tmp_path)
    (source,) = tmp_path.iterdir()
    assert {path.name for path in source.iterdir()} == {
        *("launcher", "plugin", "gpuvm", "drawing", "program", "pci", "templates"),
        *("LICENSE", "README.md", "CHANGELOG.md", "PKG-INFO", "pyproject.toml", ".gitignore"),
    }
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(build, cwd=source, env={**os.environ, **MOMENT}, check=True, capture_output=True)
    assert (tmp_path / "dist" / WHEEL).read_bytes() == (released / WHEEL).read_bytes()


def test_the_bases_are_whole_and_name_the_images_of_the_version(released: Path, tmp_path: Path) -> None:
    unpack(released / BASES, tmp_path)
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
    assert {path.name for path in (bases / "node").iterdir()} == {
        path.name for path in (ROOT / "deploy/node").iterdir()
    }


def test_the_chart_is_whole_and_its_oci_archive_has_the_same_chart(released: Path) -> None:
    chart = ROOT / "deploy/chart"
    with tarfile.open(released / CHART) as archive:
        packed = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]
    assert packed == {
        f"gpu-plugin/{path.relative_to(chart)}": path.read_bytes() for path in chart.rglob("*") if path.is_file()
    }
    with tarfile.open(released / CHART_AS_OCI) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["index.json"])["manifests"]
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == VERSION
    layers = json.loads(_blob(files, manifest))
    assert json.loads(_blob(files, layers["config"]))["name"] == "gpu-plugin"
    (layer,) = layers["layers"]
    assert _blob(files, layer) == (released / CHART).read_bytes()


def _blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    blob = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert (len(blob), f"sha256:{hashlib.sha256(blob).hexdigest()}") == (descriptor["size"], descriptor["digest"])
    return blob


def test_krews_manifest_names_the_archive_of_the_version_and_what_is_in_it(released: Path) -> None:
    """By krew's plugin-manifest.md."""
    manifest = yaml.safe_load((released / KREW).read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("gpuvm", f"v{VERSION}")
    assert len(manifest["spec"]["shortDescription"]) <= 50
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == f"{manifest['spec']['homepage']}/{PLUGIN}"
    assert platform["sha256"] == hashlib.sha256((released / PLUGIN).read_bytes()).hexdigest()
    assert platform["files"] == [{"from": f"{PLUGIN.removesuffix('.tar.gz')}/*", "to": "."}]
    with tarfile.open(released / PLUGIN) as archive:
        modes = {Path(member.name).name: member.mode for member in archive if member.isfile()}
    assert {*modes} == {platform["bin"], "LICENSE", "requirements.txt", WHEEL}
    assert modes[platform["bin"]] & 0o111


def test_krews_plugin_installs_itself_once_and_runs(released: Path, tmp_path: Path) -> None:
    unpack(released / PLUGIN, tmp_path)
    program = tmp_path / PLUGIN.removesuffix(".tar.gz") / "kubectl-gpuvm"
    link = tmp_path / "kubectl-gpuvm"  # as krew makes it
    link.symlink_to(program)
    old = {**os.environ, "PYTHON": "/bin/false"}
    refused = subprocess.run([link], env=old, capture_output=True, text=True, check=False)
    assert refused.stderr == (
        "kubectl-gpuvm: /bin/false: is no Python 3.11 or newer with venv; install one, or name it with PYTHON\n"
    )
    quick = {**os.environ, "PIP_NO_COMPILE": "1"}  # what is not imported here needs no bytecode
    lock = program.with_name("requirements.txt")
    hashes = lock.read_text()
    # Another package of the same version, as whoever has taken over an index could serve it.
    first, *_ = re.split(r"^(?=\w)", hashes, flags=re.MULTILINE)[1:]
    lock.write_text(re.sub(r"sha256:\w{64}", f"sha256:{'0' * 64}", first))
    refused = subprocess.run([link, "--version"], env=quick, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    lock.write_text(hashes)
    said = []
    for _ in range(2):
        done = subprocess.run([link, "--version"], env=quick, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == (f"kubectl-gpuvm {VERSION}\n", 0), done.stderr
        said.append(done.stderr)
    assert said == [f"kubectl-gpuvm: installing its Python packages into {program.parent}/venv, this once\n", ""]
    assert (program.parent / "venv/bin/gpu-launcher").exists()


def test_krews_plugin_names_what_the_wheel_asks_for_by_the_hashes_that_are_tested() -> None:
    of_tests, of_plugin = (
        dict(
            re.findall(
                r"^([a-z0-9-]+==[^ ;\\]+).*\n((?:    --hash=sha256:\w{64}.*\n)+)", path.read_text(), re.MULTILINE
            )
        )
        for path in (ROOT / "requirements.txt", ROOT / "deploy/krew/requirements.txt")
    )
    assert of_plugin.items() <= of_tests.items(), "run make lock"
    names = {name.partition("==")[0] for name in of_plugin}
    assert {_normal(re.split(r"[<>=]", one)[0]) for one in PROJECT["dependencies"]} <= names, "run make lock"


def test_the_sbom_has_what_the_wheel_asks_for_at_the_versions_that_are_tested(released: Path) -> None:
    text = (released / SBOM).read_text()
    sbom = _valid(text)
    versions = {_normal(one["name"]): one["version"] for one in sbom["components"]}
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    assert {_normal(re.split(r"[<>=]", one)[0]) for one in PROJECT["dependencies"]} <= {*versions}
    assert versions.items() <= locked.items()
    assert not re.search(rf"file:|/tmp|{ROOT}", text)


@pytest.mark.parametrize("name", IMAGE_SBOMS)
def test_an_images_sbom_has_each_package_of_its_locks_and_the_hashes_of_debians(released: Path, name: str) -> None:
    text = (released / name).read_text()
    sbom = _valid(text)
    program, architecture = re.fullmatch(rf"gpu-(\w+)-image-{VERSION}-(\w+)\.cdx\.json", name).groups()  # type: ignore[union-attr]
    lock = (ROOT / "deploy" / program / f"debian-{architecture}.lock").read_text()
    debian = {one["name"]: one for one in sbom["components"] if one["purl"].startswith("pkg:deb/debian/")}
    assert len(debian) == len(lock.splitlines())
    assert [one["hashes"][0]["content"] for one in debian.values()] == re.findall(r"^\w{64}", lock, re.MULTILINE)
    (version,) = re.findall(r" passwd_1%3a([^_]+)_", lock)
    assert debian["passwd"]["version"] == f"1:{version}", "an epoch is a version's, in a file's name it is %3a"
    assert {"pydantic", "gpu-launcher"} < {one["name"] for one in sbom["components"] if "hashes" not in one}


def _valid(text: str) -> Any:
    """An SBOM of this version, after its check by the schemas that cyclonedx has: its own check takes five seconds."""

    def schema(uri: str) -> Any:
        return json.loads((files("cyclonedx.schema") / "_res" / uri.rpartition("/")[2]).read_text())

    sbom = json.loads(text)
    its_schema = schema(f"bom-{sbom['specVersion']}.SNAPSHOT.schema.json")
    validator = Draft7Validator(its_schema, retriever=schema, validate_formats=True)
    assert [error.message for error in validator.iter_errors(sbom)] == []
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["version"] == VERSION
    return sbom


def _normal(distribution: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
