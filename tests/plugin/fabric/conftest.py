from pathlib import Path

import pytest

from tests.fabric.standin import Manager, compiled


@pytest.fixture(scope="session")
def libnvfm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    return compiled(tmp_path_factory.mktemp("libnvfm"))


@pytest.fixture
def manager(libnvfm: Path, tmp_path: Path) -> Manager:
    """A manager of an H100 board."""
    return Manager(libnvfm, tmp_path)
