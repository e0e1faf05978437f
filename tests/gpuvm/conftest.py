from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.forked import forked
from tests.gpuvm.standin import StandIn, stand_in


@pytest.fixture(scope="session")
def kubectl_gpuvm() -> Command:
    """kubectl-gpuvm as a process, run to its end: arguments, and its whole environment."""
    return partial(forked, "kubectl-gpuvm")


@pytest.fixture
def kubectl(tmp_path: Path) -> StandIn:
    return stand_in(tmp_path / "kubectl")
