"""The wheel, installed where there is nothing else: what a user gets without a checkout."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launcher.test_domain import RTX_2060_CASE
from tests.launcher.vms import RTX_2060_VARIABLE
from tests.processes import FIXTURES, ROOT


@dataclass(frozen=True)
class Installation:
    """An empty virtual environment with the wheel in it, and a folder that is no checkout."""

    wheel: Path
    bin: Path
    constraints: Path
    elsewhere: Path

    def run(self, name: str, *arguments: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return subprocess.run(
            [self.bin / name, *map(str, arguments)],
            cwd=self.elsewhere,
            env={**environ, "PATH": path or str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, what: str | Path, *, path: str = "") -> None:
        """With an outer pip: an environment with one of its own takes longer to make than to fill, and so does the
        bytecode of what is installed."""
        environ = {**os.environ, "PATH": path or str(self.bin)}
        pip = [sys.executable, "-m", "pip", "--python", f"{self.bin}/python", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "install", "--no-compile", "--constraint", str(self.constraints), str(what)]
        done = subprocess.run(install, cwd=self.elsewhere, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (place / "dist").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    # The lock's versions, without its hashes: the wheel itself has none there.
    constraints = place / "constraints.txt"
    constraints.write_text(
        "\n".join(re.findall(r"^[a-z0-9-]+==[^ ;\\]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    )
    (place / "elsewhere").mkdir()
    found = Installation(wheel, place / "venv" / "bin", constraints, place / "elsewhere")
    # PATH is the environment's own folder: no compiler, nothing of the machine's.
    found.install(wheel)
    return found


def test_it_renders_outside_the_checkout_without_libvirt(installed: Installation) -> None:
    arguments = ("--env", f"{RTX_2060_VARIABLE}=0000:01:00.0", "--sysfs", FIXTURES / "sysfs" / "rtx-2060")
    result = installed.run("gpu-launcher", "render", FIXTURES / "vms" / "one-gpu.yaml", *arguments)
    assert (result.stdout, result.stderr, result.returncode) == (RTX_2060_CASE.xml(), "", 0)


def test_run_says_what_to_install_and_the_extra_adds_it(installed: Installation) -> None:
    arguments = ("--vm", FIXTURES / "vms" / "no-devices.yaml", "--connect", "test:///nowhere.xml")
    without = installed.run("gpu-launcher", "run", *arguments)
    assert without.stderr.endswith(
        "Z ERROR libvirt: this Python package is not there, and run needs it; pip install 'gpu-launcher[libvirt]'\n"
    )
    assert without.returncode == 1
    # libvirt-python comes as source, so this one needs the machine's compiler.
    installed.install(f"{installed.wheel}[libvirt]", path=os.environ["PATH"])
    with_it = installed.run("gpu-launcher", "run", *arguments)
    assert "libvirt: cannot be reached at test:///nowhere.xml" in with_it.stderr


def test_fit_says_what_to_install_and_the_extra_adds_it(installed: Installation) -> None:
    slices = installed.elsewhere / "slices.json"
    slices.write_text('{"items": []}')
    arguments = ("fit", FIXTURES / "vms" / "one-gpu.yaml", "--cluster", slices)
    without = installed.run("gpu-launcher", *arguments)
    assert without.stderr == (
        "gpu-launcher: cel-expr-python: this Python package is not there, and fit needs it; "
        "pip install 'gpu-launcher[fit]'\n"
    )
    installed.install(f"{installed.wheel}[fit]")
    with_it = installed.run("gpu-launcher", *arguments)
    assert with_it.stdout.endswith("fits nowhere: neither a Node nor a device of one is among the objects.\n")
    assert with_it.returncode == 1


def test_kubectl_finds_its_plugin_and_completes_it(installed: Installation) -> None:
    listed = installed.run("kubectl-gpuvm", "list", path="/nowhere")
    assert listed.stderr == "kubectl-gpuvm: kubectl: is not on PATH; install it: kubernetes.io/docs/tasks/tools\n"
    assert installed.run("kubectl_complete-gpuvm", "unp").stdout == "unpause\n:4\n"


def test_the_plugin_takes_inventory_outside_the_checkout(installed: Installation) -> None:
    arguments = ("--sysfs", FIXTURES / "sysfs" / "two-rtx-3090", "--pci-ids", FIXTURES / "pci.ids")
    result = installed.run("gpu-plugin", "inventory", *arguments)
    assert result.stdout.count("nvidia.com/GA102_GEFORCE_RTX_3090") == 2
