"""The lab's fixtures: a machine in a cluster of its own, once for the tests of a module, which names it MACHINE."""

from collections.abc import Generator, Iterator

import pytest
from xdist import is_xdist_worker
from xdist.workermanage import WorkerController

from tests.lab.box import LabNeeds, require_host
from tests.lab.lab import Lab, running_lab
from tests.processes import ROOT

#: Where every part's logs go when a test has failed.
LOGS = ROOT / "lab-logs"

#: Of a worker: what there is to say at the end, and the modules that have a failed test. Of the one who started the
#: workers: what all of them have said.
_notes = pytest.StashKey[list[str]]()
_failed = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_notes] = []
    config.stash[_failed] = set()


def pytest_sessionstart() -> None:
    try:
        require_host()
    except LabNeeds as error:
        pytest.exit(f"the lab needs {error}", returncode=1)


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    stash, module = request.config.stash, str(request.path.stem)
    logs = LOGS / module
    with running_lab(request.module.MACHINE, logs) as lab:
        stash[_notes].append(f"{module}: {lab.node.name} was ready {lab.box.patience.boot:.0f} s after power on")
        if lab.node.first_boot is not None:
            stash[_notes].append(f"{module}: {lab.node.name} was booted twice; the first time: {lab.node.first_boot}")
        yield lab
        if module in stash[_failed]:
            lab.collect_logs(logs)


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> str:
    """The plugin's pod, once it runs."""
    return lab.start_plugin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.config.stash[_failed].add(item.path.stem)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    notes, failed = session.config.stash[_notes], session.config.stash[_failed]
    notes += [f"the logs of {module} are in {LOGS / module}" for module in sorted(failed) if (LOGS / module).exists()]
    if is_xdist_worker(session):
        session.config.workeroutput["lab"] = notes  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    node.config.stash[_notes] += node.workeroutput.get("lab", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for note in config.stash[_notes]:
        terminalreporter.write_line(f"lab: {note}")
