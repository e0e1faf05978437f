"""Keys and passwords that the guest's agent sets for users of the guest: when it starts, and when a secret has changed.

KubeVirt's pkg/virt-launcher/virtwrap/access-credentials does the same, and also every five minutes.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from launcher.runtime import guest
from launcher.vm.credentials.files import AgentCredential, keys_in, passwords_in
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

_LOOK = 15.0  # seconds between two looks at the secrets; the kubelet needs a minute to change them
_LATE = 8  # looks without an agent, after which the log says so

T = TypeVar("T")


@contextmanager
def keeping_credentials(domain: Any, credentials: Sequence[AgentCredential]) -> Iterator[None]:
    """Keep the keys and passwords of the guest's users as the secrets say, while the guest's agent answers."""
    if not credentials:
        yield
        return
    keeper = Keeper(partial(guest.set_keys, domain), partial(guest.set_password, domain), credentials)
    with guest.agent_told(domain, keeper.agent_is):
        threading.Thread(target=keeper.keep, name="credentials", daemon=True).start()
        try:
            yield
        finally:
            keeper.end()  # nobody waits for its thread: it may be asking the agent of the domain that ends now


class Keeper:
    """Keeps keys and passwords in the guest as the secrets say. `set_keys` and `set_password` have the agent set those
    of one user, and raise Refusal."""

    def __init__(
        self,
        set_keys: Callable[[str, Sequence[str]], None],
        set_password: Callable[[str, str], None],
        credentials: Sequence[AgentCredential],
    ) -> None:
        self._set_keys, self._set_password, self._credentials = set_keys, set_password, credentials
        self._news = threading.Event()
        self._has_agent = self._ended = False
        self._starts = 0  # of the agent
        self._given: dict[tuple[str, str], object] = {}  # what was set since the agent's start number _given_since
        self._given_since = 0
        self._refused: dict[str, None] = {}  # in this try
        self._trouble = Trouble(_log, logging.WARNING, "users' keys and passwords")

    def agent_is(self, connected: bool) -> None:
        """Note, in libvirt's thread, that the agent has connected or is gone. What it had set in the guest may be gone
        too."""
        self._has_agent = connected
        self._starts += connected
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def keep(self) -> None:
        """Call give() whenever the agent has started or a secret may have changed, until end()."""
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
        """Set what the agent has not yet been given since its start. An error is logged once."""
        if self._given_since != (start := self._starts):
            self._given, self._given_since = {}, start
        self._refused = {}
        try:
            keys, passwords = self._wanted()
        except ProgramError as error:
            self._trouble.tell(error)
            return
        for user, lines in keys.items():
            self._have("keys", user, lines, self._set_keys, f"{len(lines)} ssh keys")
        for user, password in passwords.items():
            self._have("password", user, password, self._set_password, "the password")
        if not self._ended:  # the end of the domain may be the reason for refusals
            self._trouble.tell("; ".join(self._refused) or None)

    def _have(self, kind: str, user: str, value: T, have: Callable[[str, T], None], what: str) -> None:
        if self._given.get((kind, user)) == value:
            return
        try:
            have(user, value)
        except ProgramError as error:
            self._refused[str(error)] = None
        else:
            self._given[kind, user] = value
            _log.info("the guest's agent has set %s of %s", what, user)

    def _wanted(self) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Read the keys and the password of each user."""
        keys: dict[str, tuple[str, ...]] = {}
        passwords: dict[str, str] = {}
        for credential in self._credentials:
            files = credential.files()
            for user in credential.users:
                keys[user] = (*keys.get(user, ()), *keys_in(files))
            if not credential.users:
                passwords.update(passwords_in(files))
        return keys, passwords
