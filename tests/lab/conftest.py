"""The lab's fixtures: a machine in a cluster of its own, once for the tests of a module, which names it MACHINE."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from xdist import is_xdist_worker
from xdist.workermanage import WorkerController

from tests.lab import build
from tests.lab.box import LabNeeds, opened_box, require_host
from tests.lab.control_plane import Cluster, running_control_plane
from tests.lab.lab import Lab, running_lab
from tests.lab.terminal import HOME, Terminal
from tests.processes import ROOT

#: Where every part's logs go when a test has failed.
LOGS = ROOT / "lab-logs"
#: The test files that have failed, where the machine of each has stood still: `make lab` runs them once more. There is
#: no such file where a test of any other has failed.
AGAIN = LOGS / "again"

#: The modules that take long, the longest first: no worker should be left with one when the other is done.
LONG = (
    *("test_kubevirt", "test_day", "test_mission", "test_dra", "test_plugin", "test_getting_started"),
    *("test_cpus", "test_hostile_tenant", "test_own_machine", "test_bare"),
)

#: `with timed("a drain"):` measures a step.
Timed = Callable[[str], AbstractContextManager[None]]

#: Of a worker: what there is to say at the end, the modules that have a failed test, and the test files of those whose
#: machine has stood still. Of the one who started the workers: the first and the last of all of them.
_notes = pytest.StashKey[list[str]]()
_failed = pytest.StashKey[set[str]]()
_stood_still = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_notes] = []
    config.stash[_failed] = set()
    config.stash[_stood_still] = set()
    if not hasattr(config, "workerinput"):
        AGAIN.unlink(missing_ok=True)


def pytest_sessionstart() -> None:
    try:
        require_host()
        build.kubernetes_minor()
        build.kubevirt_directory()
    except LabNeeds as error:
        pytest.exit(f"the lab needs {error}", returncode=1)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """KubeVirt's modules need a release of it."""
    return (collection_path.stem.startswith("test_kubevirt") and build.kubevirt_directory() is None) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (*LONG, item.path.stem).index(item.path.stem))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the working tree."""
    return build.tree_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, images: Path) -> Iterator[Lab]:
    stash, module = request.config.stash, str(request.path.stem)
    logs = LOGS / module
    with running_lab(request.module.MACHINE, images, logs) as lab:
        stash[_notes].append(f"{module}: {lab.node.name} was ready {lab.box.patience.boot:.0f} s after power on")
        yield lab
        for why in lab.node.failed_boots:
            stash[_notes].append(f"{module}: a boot of {lab.node.name} was tried once more: {why}")
        if module in stash[_failed]:
            lab.collect_logs(logs)
            stash[_notes].append(f"{module}: what {lab.node.name} does at the end:\n{lab.does()}")
            if lab.node.stood_still():
                stash[_stood_still].add(request.node.nodeid)
                stash[_notes].append(f"{module}: a processor of {lab.node.name} has stood still")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane without a node: all pods stay Pending."""
    with opened_box() as box, running_control_plane(box) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def timed(request: pytest.FixtureRequest) -> Iterator[Timed]:
    """What measures a module's steps; the summary says how long each took."""
    took: list[str] = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        took.append(f"{name} {time.monotonic() - began:.0f} s")

    yield step
    request.config.stash[_notes].append(f"{request.path.stem}: {', '.join(took)}")


@pytest.fixture
def noted(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """What the summary is to say of a test."""
    return lambda text: request.config.stash[_notes].append(f"{request.path.stem}: {text}")


@pytest.fixture(autouse=True)
def _machine_goes_on(request: pytest.FixtureRequest) -> None:
    """Fail at once where a test before this one has failed on a machine that has stood still."""
    if "lab" in request.fixturenames and request.path.stem in request.config.stash[_failed]:
        lab: Lab = request.getfixturevalue("lab")
        assert not lab.node.stood_still(), f"a processor of {lab.node.name} has stood still in a test before"


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    """The plugin's pod, once it runs."""
    return lab.start_plugin()


@pytest.fixture(scope="module")
def terminal(lab: Lab) -> Terminal:
    lab.box.path(HOME).mkdir()
    return Terminal(lab)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.config.stash[_failed].add(item.path.stem)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_xdist_worker(session):
        told = {"notes": session.config.stash[_notes], "stood still": [*session.config.stash[_stood_still]]}
        session.config.workeroutput["lab"] = told  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    # A worker that was killed has no output.
    told = getattr(node, "workeroutput", {}).get("lab", {"notes": [], "stood still": []})
    node.config.stash[_notes] += told["notes"]
    node.config.stash[_stood_still].update(told["stood still"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = (report for end in ("failed", "error") for report in terminalreporter.stats.get(end, []))
    failed = {report.nodeid.partition("::")[0] for report in reports}
    logs = (LOGS / Path(file).stem for file in sorted(failed))
    if build.kubevirt_directory() is None:
        config.stash[_notes].append("KubeVirt was not tried: KUBEVIRT=DIR names a directory with a release")
    for note in (*config.stash[_notes], *(f"logs are in {directory}" for directory in logs if directory.exists())):
        terminalreporter.write_line(f"lab: {note}")
    if failed and failed <= config.stash[_stood_still]:
        AGAIN.write_text("\n".join(sorted(failed)))
