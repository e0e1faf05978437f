"""gpu-plugin's image, as `make image` has just written it: run as a container, and looked into."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.processes import FIXTURES, ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ARCHIVE = ROOT / "dist" / f"gpu-plugin-{VERSION}.tar"


@dataclass(frozen=True)
class Container:
    """A container of the image, in a store that is this test's own, and a directory for what it prints."""

    store: Path
    out: Path

    def buildah(self, *arguments: str | Path) -> str:
        return subprocess.run(
            ["buildah", "--root", self.store, "--runroot", self.store / "run", *arguments],
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def run(self, *argv: str | Path) -> str:
        """What a command in it prints; it sees the fixtures below /fixtures."""
        # Not through buildah: what a command prints last is now and then lost there.
        printing = ("sh", "-c", 'exec "$@" > /out/printed', "sh", *argv)
        volumes = ("--volume", f"{FIXTURES}:/fixtures:ro", "--volume", f"{self.out}:/out")
        self.buildah("run", *volumes, "image", "--", *printing)
        return (self.out / "printed").read_text()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    container = Container(tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("out"))
    container.buildah("from", "--quiet", "--name", "image", f"oci-archive:{ARCHIVE}")
    yield container
    container.buildah("rm", "image")


@pytest.mark.parametrize("machine", ["two-rtx-3090", "hgx-a100-8-gpu"])
def test_inventory_says_in_the_image_what_it_says_in_the_checkout(
    container: Container, gpu_plugin: Command, machine: str
) -> None:
    def arguments(fixtures: Path) -> tuple[str | Path, ...]:
        return ("inventory", "--json", "--sysfs", fixtures / "sysfs" / machine, "--pci-ids", fixtures / "pci.ids")

    found = json.loads(container.run("gpu-plugin", *arguments(Path("/fixtures"))))
    expected = json.loads(gpu_plugin(*arguments(FIXTURES)).stdout)
    assert found["devices"] == expected["devices"]


def test_names_come_from_debians_pci_ids_by_itself(container: Container) -> None:
    said = container.run("gpu-plugin", "inventory", "--sysfs", "/fixtures/sysfs/two-rtx-3090")
    assert "nvidia.com/GA102_GEFORCE_RTX_3090" in said
    assert "Names from /usr/share/misc/pci.ids of 20" in said


@pytest.mark.parametrize("command", ["serve", "bind", "doctor", "config", "record"])
def test_every_command_starts(container: Container, command: str) -> None:
    assert f"gpu-plugin {command} [OPTIONS]" in container.run("gpu-plugin", command, "--help")


def test_it_has_the_pinned_packages_and_no_other(container: Container) -> None:
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = container.run("/opt/gpu-plugin/bin/python", "-I", "-c", program)
    pinned = re.findall(r"^\S+==\S+", (ROOT / "deploy/plugin/requirements.txt").read_text(), re.MULTILINE)
    assert {re.sub(r"[-_.]+(?=.*==)", "-", name).lower() for name in installed.split()} == set(pinned)


def test_nothing_in_it_builds_or_installs_python(container: Container) -> None:
    look = "for program in cc gcc make pip pip3 uv; do command -v $program; done; ls -A /usr/lib/python3/dist-packages"
    assert container.run("sh", "-c", f"{look} || true") == ""


def test_nothing_is_left_to_compile_where_nothing_can_be_written(container: Container) -> None:
    sources, compiled = (
        set(container.run("find", "/opt/gpu-plugin/lib", "-name", name, "-printf", "%P\n").split())
        for name in ("*.py", "*.pyc")
    )
    assert {re.sub(r"__pycache__/(.+)\.cpython-\d+\.pyc$", r"\1.py", path) for path in compiled} == sources


def test_it_tells_nothing_of_where_it_was_built(container: Container) -> None:
    config = json.loads(container.buildah("inspect", "--type", "container", "image"))["OCIv1"]["config"]
    assert config["Entrypoint"] == ["gpu-plugin"]
    labels = {name for name in config["Labels"] if not name.startswith("io.buildah.")}
    assert labels == {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses")}
    assert [variable.partition("=")[0] for variable in config["Env"]] == ["PATH"]
    image = Path(container.buildah("mount", "image").strip())
    assert [(image / "etc" / name).read_text() for name in ("hostname", "resolv.conf")] == ["", ""]
