"""Keys and passwords that a guest's users get by its agent: when the agent starts, and when a secret has changed.

KubeVirt's pkg/virt-launcher/virtwrap/access-credentials does the same, every five minutes besides.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from launcher.running import guest
from launcher.storage.credentials import ByAgent, keys_in, passwords_in
from program.errors import ProgramError

_log = logging.getLogger(__name__)

_LOOK = 15.0  # seconds between two looks at whether a secret has changed; the kubelet needs a minute anyway
_LATE = 8  # looks without an agent, after which the log says so

#: The keys of each user, and the password of each.
_Wanted = tuple[dict[str, tuple[str, ...]], dict[str, str]]


@contextmanager
def kept(domain: Any, credentials: Sequence[ByAgent]) -> Iterator[None]:
    """Within, the guest's users have what the secrets say, as soon and as long as its agent answers."""
    if not credentials:
        yield
        return
    keeper = Keeper(partial(guest.set_keys, domain), partial(guest.set_password, domain), credentials)
    with guest.agent_told(domain, keeper.agent_is):
        threading.Thread(target=keeper.keep, name="credentials", daemon=True).start()
        try:
            yield
        finally:
            keeper.end()  # its thread may be in a question to the agent, whose domain ends now


class Keeper:
    """Who has the agent set keys and passwords by these two, of a user each; they raise Refusal."""

    def __init__(
        self,
        set_keys: Callable[[str, Sequence[str]], None],
        set_password: Callable[[str, str], None],
        credentials: Sequence[ByAgent],
    ) -> None:
        self._set_keys, self._set_password, self._credentials = set_keys, set_password, credentials
        self._news = threading.Event()
        self._has_agent = self._ended = False
        self._starts = 0  # of the agent
        self._given: tuple[int, _Wanted] | None = None
        self._complaint = ""

    def agent_is(self, there: bool) -> None:
        """In libvirt's thread: the agent has connected, or is gone. What it was given may be gone with it."""
        self._has_agent = there
        self._starts += there
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def keep(self) -> None:
        """Have it done whenever there is cause to, until end()."""
        looks = 0
        while not self._ended:
            self._news.clear()
            if self._has_agent:
                self.give()
            elif (looks := looks + 1) == _LATE:
                _log.warning(
                    "the guest's agent has not started yet, and has to set the users' keys and passwords; install "
                    "qemu-guest-agent in the guest"
                )
            self._news.wait(_LOOK)

    def give(self) -> None:
        """Have it done, unless the agent has had the same since its start. What goes wrong is in the log, once."""
        start = self._starts
        try:
            keys, passwords = wanted = self._wanted()
            if self._given == (start, wanted):
                return
            for user, lines in keys.items():
                self._set_keys(user, lines)
                _log.info("the guest's agent has set %d ssh keys of %s", len(lines), user)
            for user, password in passwords.items():
                self._set_password(user, password)
                _log.info("the guest's agent has set the password of %s", user)
        except ProgramError as error:
            if str(error) != self._complaint and not self._ended:
                self._complaint = str(error)
                _log.warning("users' keys and passwords: %s", error)
        else:
            self._given, self._complaint = (start, wanted), ""

    def _wanted(self) -> _Wanted:
        keys: dict[str, tuple[str, ...]] = {}
        passwords: dict[str, str] = {}
        for credential in self._credentials:
            files = credential.files()
            for user in credential.users:
                keys[user] = (*keys.get(user, ()), *keys_in(files))
            if not credential.users:
                passwords.update(passwords_in(files))
        return keys, passwords
