import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from launcher.running.embedded import prepared
from plugin.cards.naming import PCIIDs, read_pci_ids
from tests.kubelet import Kubelet, running_kubelet
from tests.processes import FIXTURES, finished

# A noisy machine is no defect of the code: an example may take as long as it takes.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew; read them in the diff")
    parser.addoption("--thorough", action="store_true", help="ten thousand rounds and trees, instead of some hundred")


Machine = Callable[[str], Path]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pci_ids() -> PCIIDs:
    return read_pci_ids(FIXTURES / "pci.ids")


@pytest.fixture
def machine() -> Machine:
    """The recorded or composed machine of that name: a directory that stands for /sys."""

    def find(name: str) -> Path:
        path = FIXTURES / "sysfs" / name
        assert path.is_dir(), f"no machine {name}; there are {sorted(p.name for p in path.parent.iterdir())}"
        return path

    return find


@pytest.fixture
def copied_machine(machine: Machine, tmp_path: Path) -> Machine:
    """A copy of a machine, to break one thing in it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(machine(name), tmp_path / name, symlinks=True))

    return copy


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a path short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def kubelet(short_dir: Path) -> Iterator[Kubelet]:
    with running_kubelet(short_dir) as kubelet:
        yield kubelet


@pytest.fixture(scope="session")
def embedded_uri() -> Iterator[str]:
    """Libvirt's QEMU driver in this process; one root for the session, since its first look at QEMU takes seconds."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as root:
        with prepared(Path(root)):
            pass
        yield f"qemu:///embed?root={root}"


@pytest.fixture(scope="session")
def gpu_launcher() -> Command:
    """gpu-launcher as a process, run to its end: arguments, and its whole environment."""
    return partial(finished, "gpu-launcher")


@pytest.fixture(scope="session")
def gpu_plugin() -> Command:
    return partial(finished, "gpu-plugin")
