"""The VM that a command line names, in the forms of `kubectl virt`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from program.errors import UserError

_KINDS = re.compile(r"vmi?s?|virtualmachine(instance)?s?|pods?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_EXPECTED = "expected NAME, vm NAME or vm/NAME[/NAMESPACE]"


class Target(NamedTuple):
    """A VM's name. `user` is the guest's, for ssh; `namespace` is None for that of -n, or kubectl's own."""

    name: str
    namespace: str | None = None
    user: str | None = None


def target_of(words: Sequence[str]) -> Target:
    """Return the VM that `NAME`, `vm NAME`, `vm/NAME` or `USER@vm/NAME/NAMESPACE` names. UserError for any
    other form."""
    text = " ".join(words)
    if len(words) == 2 and _KINDS.fullmatch(words[0]):
        words = [f"{words[0]}/{words[1]}"]
    if len(words) != 1:
        raise UserError(text or "VM", "is not one VM", _EXPECTED)
    user, at, place = words[0].rpartition("@")
    kind, *names = place.split("/") if "/" in place else ("vm", place)
    if not _KINDS.fullmatch(kind) or len(names) > 2 or (at and not user):
        raise UserError(text, "names no VM", _EXPECTED)
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise UserError(text, f"{wrong[0]!r} is no name in Kubernetes", _EXPECTED)
    return Target(names[0], names[1] if len(names) == 2 else None, user or None)
