import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

from launcher.runtime.embedded import prepared
from plugin.cards.names import PCIIDs, read_pci_ids
from tests.forked import forked
from tests.kubelet import Kubelet, running_kubelet
from tests.processes import FIXTURES
from tests.temporary import SHORT

T = TypeVar("T")

# A noisy machine is no defect of the code: an example may take as long as it takes.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew; read them in the diff")
    parser.addoption("--thorough", action="store_true", help="ten thousand rounds and trees, instead of some hundred")


def pytest_xdist_auto_num_workers() -> int:
    """Two workers leave a processor idle for a tenth of the time, four for none; but each imports all of the tests."""
    return (os.cpu_count() or 1) * 3


#: Files whose tests take longest, the longest first.
LONG = (
    *("test_suspension", "test_moving", "test_faults", "test_project", "test_rounds", "test_driver", "test_binding"),
    *("test_guest_pci", "test_conditions", "test_chaos", "test_broken_sysfs", "test_vgpus", "test_mutations"),
    *("test_mediated", "test_agreement", "test_fabric", "test_fuzz", "test_soak", "test_rules"),
    *("test_qemu", "test_own_user", "test_kubelet", "test_preparation", "test_signals", "test_broken_owners"),
    *("test_problems", "test_monitoring", "test_silence", "test_bounds", "test_firmware", "test_several_groups"),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The first worker of pytest-xdist compiles the tests, if nobody has, and the others read what it has written: all
    at once would each compile all of them."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" else fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker of pytest-xdist begins with some of the long files, so that none is left with one at the end."""
    if not config.getoption("--thorough"):
        left = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = sorted((path for path in files if path.stem in LONG), key=lambda path: LONG.index(path.stem))
    items[:] = dealt([files.pop(path) for path in long], [*chain(*files.values())], _workers())


def _workers() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def dealt(long: list[list[T]], short: list[T], workers: int) -> list[T]:
    """All in an order of which `--dist worksteal` gives each worker a part as long as the next one's: in each some of
    the long files first."""
    rest, every, order = iter(short), len(short) + sum(map(len, long)), list[T]()
    for number in range(workers):
        share = (every - len(order)) // (workers - number)
        own = [*chain(*long[number::workers])]
        order += [*own, *islice(rest, max(0, share - len(own)))]
    return [*order, *rest]


def pytest_collection_finish() -> None:
    """All of it lasts, and is more than what a test makes: Python need not look for garbage in it."""
    gc.freeze()


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
    with tempfile.TemporaryDirectory(prefix="gl-", dir=SHORT) as directory:
        yield Path(directory)


@pytest.fixture
def outside_dev() -> Iterator[Path]:
    """A directory that is not below /dev: `tmp_path` may be in /dev/shm, and the launcher treats /dev apart."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def kubelet(short_dir: Path) -> Iterator[Kubelet]:
    with running_kubelet(short_dir) as kubelet:
        yield kubelet


# Libvirt wants an event loop before it opens anything; there is one embedded driver a process.
_LOOK_AT_QEMU = """
import libvirt, sys
libvirt.virEventRegisterDefaultImpl()
libvirt.open(f"qemu:///embed?root={sys.argv[1]}").getCapabilities()
"""


Shared = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """A directory by its name, filled once for all workers of pytest-xdist."""
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent

    def filled(name: str, fill: Callable[[Path], object]) -> Path:
        with (common / f"{name}.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if lock.seek(0, os.SEEK_END) == 0:
                (common / name).mkdir()
                fill(common / name)
                lock.write("filled")
        return common / name

    return filled


@pytest.fixture(scope="session")
def known_qemu(shared: Shared) -> Path:
    """What libvirt keeps of its first look at every QEMU, which takes seconds: the `cache` of an embedded driver's
    root. Copy it into another root, and libvirt there looks no more."""

    def look(directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="gl-", dir=SHORT) as short, prepared(Path(short)):
            subprocess.run([sys.executable, "-c", _LOOK_AT_QEMU, short], capture_output=True, check=True)
            shutil.copytree(Path(short) / "cache", directory / "cache")

    return shared("known-qemu", look) / "cache"


@pytest.fixture(scope="session")
def embedded_uri(known_qemu: Path) -> Iterator[str]:
    """Libvirt's QEMU driver in this process."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir=SHORT) as root:
        with prepared(Path(root)):
            shutil.copytree(known_qemu, Path(root) / "cache")
        yield f"qemu:///embed?root={root}"


@pytest.fixture(scope="session")
def gpu_launcher() -> Command:
    """gpu-launcher as a process, run to its end: arguments, and its whole environment."""
    return partial(forked, "gpu-launcher")


@pytest.fixture(scope="session")
def gpu_plugin() -> Command:
    return partial(forked, "gpu-plugin")
