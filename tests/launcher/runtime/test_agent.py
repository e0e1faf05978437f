"""What a guest's agent is asked and what it may answer, right or wrong. The agent is the guest's, so nothing that it
says is taken on trust."""

import base64
import json
from collections.abc import Callable

import pytest

from launcher.runtime.agent import (
    Ended,
    GuestFilesystem,
    GuestInfo,
    GuestInterface,
    GuestUser,
    ended,
    filesystems,
    info,
    ping,
    set_time,
    start,
    users,
)
from program.errors import Refusal


def answering(*answers: object) -> tuple[Callable[[str], str], list[object]]:
    """An agent that gives these answers, one after the other, and what it has been asked."""
    asked: list[object] = []
    left = iter(answers)

    def ask(command: str) -> str:
        asked.append(json.loads(command))
        return json.dumps(next(left))

    return ask, asked


def test_a_ping_is_answered_by_whatever_the_agent_returns() -> None:
    ask, asked = answering({"return": {}})
    ping(ask)
    assert asked == [{"execute": "guest-ping"}]


def test_a_program_is_started_with_its_arguments_as_they_are() -> None:
    ask, asked = answering({"return": {"pid": 814}})
    assert start(ask, "test", ["-e", 'a "b" c']) == 814
    arguments = {"path": "test", "arg": ["-e", 'a "b" c'], "capture-output": True}
    assert asked == [{"execute": "guest-exec", "arguments": arguments}]


def test_a_program_that_has_ended_has_a_code_or_a_signal_and_what_it_said() -> None:
    said = base64.b64encode(b"no\n").decode()
    ask, asked = answering(
        {"return": {"exited": False}},
        {"return": {"exited": True, "exitcode": 3, "out-data": said}},
        {"return": {"exited": True, "signal": 9, "err-data": said}},
    )
    assert [ended(ask, 814) for _ in range(3)] == [None, Ended(3, 0, b"no\n", b""), Ended(0, 9, b"", b"no\n")]
    assert asked[0] == {"execute": "guest-exec-status", "arguments": {"pid": 814}}


def test_of_what_a_program_says_the_first_64_kib_are_kept() -> None:
    ask, _ = answering(
        {"return": {"exited": True, "exitcode": 0, "out-data": base64.b64encode(bytes(100_000)).decode()}}
    )
    found = ended(ask, 1)
    assert found is not None
    assert len(found.out) == 1 << 16


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "not of its protocol"),
        ('{"error": {}}', "not of its protocol"),
        ('{"return": {"exited": true, "exitcode": -1}}', "no number as exitcode"),
        ('{"return": {"exited": true, "exitcode": "0"}}', "no number as exitcode"),
        ('{"return": {"exited": true, "signal": 1e300}}', "no number as signal"),
        ('{"return": {"exited": true, "out-data": 5}}', "no base64 as out-data"),
        ('{"return": {"exited": true, "err-data": "\\ud800"}}', "no base64 as err-data"),
        (f'{{"return": "{"x" * (4 << 20)}"}}', "with 4194318 characters; expected at most 4194304"),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_refusal(text: str, wrong: str) -> None:
    with pytest.raises(Refusal, match=f"the guest's agent: .*{wrong}"):
        ended(lambda command: text, 1)


def test_a_process_without_a_number_is_a_refusal() -> None:
    with pytest.raises(Refusal, match="gives no number as pid"):
        start(answering({"return": {}})[0], "true", [])


def test_users_and_file_systems_are_what_the_agent_tells_of_them() -> None:
    ask, asked = answering(
        {"return": [{"user": "admin", "login-time": 1795340007.5}, {"user": "it", "domain": "LAB", "login-time": 0}]},
        {"return": [
            {"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5 << 40, "total-bytes": 6 << 40},
            {"name": "proc", "mountpoint": "/proc", "type": "proc"},
        ]},
    )  # fmt: skip
    assert users(ask) == (GuestUser("admin", "", 1795340007.5), GuestUser("it", "LAB", 0.0))
    assert filesystems(ask) == (
        GuestFilesystem("vda1", "/", "ext4", 5 << 40, 6 << 40), GuestFilesystem("proc", "/proc", "proc", 0, 0)
    )  # fmt: skip
    assert asked == [{"execute": "guest-get-users"}, {"execute": "guest-get-fsinfo"}]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (users, {}),
        (users, [1]),
        (users, [{"user": "x"}]),
        (users, [{"user": "x", "login-time": 1e300}]),
        (users, [{"user": 5, "login-time": 1}]),
        (filesystems, "all"),
        (filesystems, [{"name": "x", "used-bytes": -1}]),
        (filesystems, [{"name": "x", "total-bytes": 1 << 64}]),
    ],
)
def test_users_and_file_systems_that_make_no_sense_are_a_refusal(
    question: Callable[..., object], answer: object
) -> None:
    with pytest.raises(Refusal, match=r"the guest's agent: gives (no text|no number|no time|an answer)"):
        question(answering({"return": answer})[0])


ABLE = {
    "version": "8.2.0",
    "supported_commands": [
        {"name": "guest-get-host-name", "enabled": True},
        {"name": "guest-get-osinfo", "enabled": False},
        {"name": "guest-network-get-interfaces", "enabled": True},
    ],
}


def test_the_agent_tells_what_it_says_that_it_can() -> None:
    card = {
        "name": "enp1s0",
        "hardware-address": "52:54:00:12:34:56",
        "ip-addresses": [
            {"ip-address-type": "ipv4", "ip-address": "10.0.2.2", "prefix": 24},
            {"ip-address-type": "ipv6", "ip-address": "fd10::2", "prefix": 120},
        ],
    }
    ask, asked = answering({"return": ABLE}, {"return": {"host-name": "web"}}, {"return": [card, {"name": "lo"}]})
    assert info(ask) == GuestInfo(
        agent="8.2.0",
        host_name="web",
        system="",
        kernel="",
        interfaces=(
            GuestInterface("enp1s0", "52:54:00:12:34:56", ("10.0.2.2/24", "fd10::2/120")),
            GuestInterface("lo", "", ()),
        ),
    )
    names = ["guest-info", "guest-get-host-name", "guest-network-get-interfaces"]
    assert asked == [{"execute": name} for name in names]


def test_of_what_the_agent_tells_the_beginnings_are_kept() -> None:
    many = [{"name": "x" * 1000, "ip-addresses": [{"ip-address": "::1", "prefix": 128}] * 100}] * 100
    ask, _ = answering({"return": ABLE}, {"return": {"host-name": "\ud800"}}, {"return": many})
    told = info(ask)
    assert (told.host_name, len(told.interfaces)) == ("?", 64)
    assert (len(told.interfaces[0].name), len(told.interfaces[0].addresses)) == (256, 64)


@pytest.mark.parametrize(
    ("about", "interfaces"),
    [
        ({"version": 8}, []),
        ([], []),
        (ABLE, [1]),
        (ABLE, [{"name": []}]),
        (ABLE, [{"ip-addresses": [{"ip-address": "::1", "prefix": "all"}]}]),
        (ABLE, [{"ip-addresses": ["::1"]}]),
    ],
)
def test_what_makes_no_sense_of_a_guest_is_a_refusal(about: object, interfaces: object) -> None:
    ask, _ = answering({"return": about}, {"return": {}}, {"return": interfaces})
    with pytest.raises(Refusal, match=r"the guest's agent: gives (no text|no number|an answer)"):
        info(ask)


def test_the_guests_clock_is_set_to_a_time() -> None:
    ask, asked = answering({"return": {}})
    set_time(ask, 1_796_000_000_000_000_000)
    assert asked == [{"execute": "guest-set-time", "arguments": {"time": 1_796_000_000_000_000_000}}]
