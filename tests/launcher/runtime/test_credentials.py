"""When a guest's users get their keys and passwords by its agent, which here is a list of what it was told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.runtime import guest
from launcher.runtime.credentials import Keeper, keeping_credentials
from launcher.vm.credentials.files import AgentCredential
from program.errors import Refusal
from tests.launcher.guests import a_vm
from tests.launcher.vm.volumes.pods import mount


class Agent:
    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.refuses = False

    def set_keys(self, user: str, keys: Sequence[str]) -> None:
        if self.refuses:
            raise Refusal("the guest's agent", "knows no such user", "make one")
        self.told.append((user, list(keys)))

    def set_password(self, user: str, password: str) -> None:
        self.told.append((user, password))

    def tells(self) -> list[tuple[str, object]]:
        """What is new."""
        told, self.told = self.told, []
        return told


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def keeper(agent: Agent, tmp_path: Path) -> Keeper:
    mount(tmp_path / "team", "", {"a": b"A\n", "b": b"B"})
    mount(tmp_path / "mine", "", {"key": b"M\n"})
    mount(tmp_path / "words", "", {"root": b"word\n"})
    credentials = (
        AgentCredential("team", tmp_path / "team", ("root", "guest")),
        AgentCredential("words", tmp_path / "words"),
        AgentCredential("mine", tmp_path / "mine", ("guest",)),
    )
    keeper = Keeper(agent.set_keys, agent.set_password, credentials)
    keeper.agent_is(True)
    return keeper


def test_a_user_has_the_keys_of_all_secrets_and_a_password_once(agent: Agent, keeper: Keeper) -> None:
    keeper.give()
    assert agent.tells() == [("root", ["A", "B"]), ("guest", ["A", "B", "M"]), ("root", "word")]
    keeper.give()
    assert agent.tells() == []


def test_a_secret_that_has_changed_is_set_anew(agent: Agent, keeper: Keeper, tmp_path: Path) -> None:
    keeper.give()
    agent.tells()
    (tmp_path / "mine" / "key").write_bytes(b"N\n")
    keeper.give()
    assert ("guest", ["A", "B", "N"]) in agent.tells()


def test_an_agent_that_has_started_again_is_told_again(agent: Agent, keeper: Keeper) -> None:
    keeper.give()
    first = agent.tells()
    keeper.agent_is(False)
    keeper.agent_is(True)
    keeper.give()
    assert agent.tells() == first


def test_what_the_agent_refuses_is_in_the_log_once_and_tried_again(
    agent: Agent, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    agent.refuses = True
    keeper.give()
    assert agent.tells() == [("root", "word")], "what one is refused keeps nobody else from theirs"
    keeper.give()
    refused = "users' keys and passwords: the guest's agent: knows no such user; make one"
    assert [line for line in caplog.messages if "has set" not in line] == [refused]
    agent.refuses = False
    keeper.give()
    assert agent.tells() == [("root", ["A", "B"]), ("guest", ["A", "B", "M"])]


def test_no_password_and_no_key_is_in_the_log(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    keeper.give()
    assert len(caplog.messages) == 3
    assert not [line for line in caplog.messages if "word'" in line or "A" in line]


def test_libvirt_tells_of_the_agent_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    with guest.connected("test:///default", a_vm()) as connection:
        domain = connection.lookupByName("test")
        with keeping_credentials(domain, (AgentCredential("team", tmp_path, ("root",)),)):
            assert domain.isActive()
