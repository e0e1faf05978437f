"""What both images have in common, as `make image` has just written them."""

import json
import os
import re
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.image.container import ARCHITECTURE, VERSION, Container, Program, container_of, sizes, times
from tests.processes import ROOT

#: A command of each program that needs no machine, and what its output begins with.
RECORDED: dict[Program, tuple[tuple[str, ...], str]] = {
    "plugin": (("inventory", "--sysfs", "/fixtures/sysfs/two-rtx-3090"), "ADDRESS"),
    "launcher": (("render", "/fixtures/vms/no-devices.yaml"), "<domain "),
}


@pytest.fixture(params=["plugin", "launcher"])
def container(request: pytest.FixtureRequest) -> Container:
    found = request.getfixturevalue(f"{request.param}_container")
    assert isinstance(found, Container)
    return found


def test_it_has_the_pinned_packages_and_no_other(container: Container) -> None:
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    python = f"/opt/gpu-{container.program}/bin/python"
    found = container.run(python, "-I", "-c", program).split()
    # Libvirt's is Debian's.
    installed = {re.sub(r"[-_.]+(?=.*==)", "-", name).lower() for name in found if not name.startswith("libvirt-")}
    pinned = (ROOT / "deploy" / container.program / "requirements.txt").read_text()
    assert installed == {f"gpu-launcher=={VERSION}", *re.findall(r"^\S+==\S+", pinned, re.MULTILINE)}


def test_it_has_debians_packages_of_its_lock_and_no_other(container: Container) -> None:
    query = ("dpkg-query", "--show", "--showformat=${Package}_${Version}_${Architecture}.deb\n")
    locked = (ROOT / "deploy" / container.program / f"debian-{ARCHITECTURE}.lock").read_text()
    assert sorted(container.run(*query).split()) == [unquote(file) for file in sorted(locked.split()[1::2])]


@pytest.mark.parametrize("program", ["plugin", "launcher"])
def test_its_program_starts_on_each_architecture_of_the_archive(program: Program, tmp_path: Path) -> None:
    """Those of other machines are emulated."""
    found = sizes(program)
    assert ARCHITECTURE in found
    for architecture in found:
        with container_of(program, tmp_path / architecture, architecture) as container:
            assert container.run("dpkg", "--print-architecture") == f"{architecture}\n"
            assert container.run(f"gpu-{program}", "--version") == f"gpu-{program} {VERSION}\n"
            arguments, beginning = RECORDED[program]
            assert container.run(f"gpu-{program}", *arguments).startswith(beginning)


def test_nothing_in_it_builds_or_installs_python(container: Container) -> None:
    look = "for program in cc gcc make pip pip3 uv; do command -v $program; done; ls -A /usr/lib/python3/dist-packages"
    found = container.run("sh", "-c", f"{look} || true").split()
    assert {name for name in found if "libvirt" not in name and name != "__pycache__"} == set()


def test_nothing_is_left_to_compile_where_nothing_can_be_written(container: Container) -> None:
    sources, compiled = (
        set(container.run("find", f"/opt/gpu-{container.program}/lib", "-name", name, "-printf", "%P\n").split())
        for name in ("*.py", "*.pyc")
    )
    assert {re.sub(r"__pycache__/(.+)\.cpython-\d+\.pyc$", r"\1.py", path) for path in compiled} == sources


def test_debians_modules_are_compiled_whatever_their_times(container: Container) -> None:
    """By a hash of the source: all files have one time, and Python would compile anew what has another one."""
    compiled = [*container.root().glob("usr/lib/python3*/**/*.pyc")]
    assert compiled
    assert [path for path in compiled if not path.read_bytes()[4] & 1] == []


@pytest.mark.parametrize("program", ["plugin", "launcher"])
def test_every_time_in_the_archive_is_that_of_debians_indices(program: Program) -> None:
    """So that a second build has the same bytes."""
    assert times(program) == {datetime.fromisoformat((ROOT / "deploy/debian.date").read_text().strip()).timestamp()}


def test_it_tells_nothing_of_where_it_was_built(container: Container) -> None:
    config = json.loads(container.buildah("inspect", "--type", "container", "image"))["OCIv1"]["config"]
    assert config["Entrypoint"] == [f"gpu-{container.program}"]
    assert set(config["Labels"]) == {
        f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses")
    }
    assert [variable.partition("=")[0] for variable in config["Env"]] == ["PATH"]
    assert [(container.root() / "etc" / name).read_text() for name in ("hostname", "resolv.conf")] == ["", ""]


@pytest.mark.skipif(bool(os.environ.get("RELEASE")), reason="the page has the sizes of Debian stable's")
@pytest.mark.parametrize("program", ["plugin", "launcher"])
def test_the_page_of_figures_says_how_large_it_is(program: Program) -> None:
    page = (ROOT / "docs" / "figures.md").read_text()
    (figure,) = re.findall(rf"gpu-{program}'s (?:image )?with (\d+) MB compressed", page)
    # Debian's updates change it a little.
    assert sizes(program)[ARCHITECTURE] / 1e6 == pytest.approx(int(figure), abs=5)
