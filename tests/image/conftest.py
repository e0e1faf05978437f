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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with a guest that boots Linux first: no worker should be left with one, and half of what they take is
    waiting, so three workers have two processors busy."""
    items.sort(key=lambda item: "guest" not in item.name)
