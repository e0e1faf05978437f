from collections.abc import Iterator

import pytest

from tests.image.container import Container, container_of


@pytest.fixture(scope="session")
def plugin_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container_of("plugin", tmp_path_factory.mktemp("plugin")) as container:
        yield container


@pytest.fixture(scope="session")
def launcher_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container_of("launcher", tmp_path_factory.mktemp("launcher")) as container:
        yield container
