"""The keys and passwords of a guest's users, from secrets that the pod mounts.

This module knows no manifests: the process that stays beside the guest uses it, and reads secrets that have changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.vm.volumes.places import mounted_files


@dataclass(frozen=True, slots=True)
class AgentCredential:
    """A `secret`, mounted at `directory`, that the guest's agent is to apply: as ssh keys of these users, or, without
    users, as passwords of the users that its files are named after."""

    secret: str
    directory: Path
    users: tuple[str, ...] = ()

    def files(self) -> Mapping[str, bytes]:
        """Return the secret's files, content by name; Refusal if they cannot be read."""
        return mounted_files(self.secret, self.directory)


def keys_in(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the public keys in the files, in the order of the files' names: a key is a line that is no comment."""
    lines = (
        line.strip() for _, content in sorted(files.items()) for line in content.decode(errors="replace").split("\n")
    )
    return tuple(line for line in lines if line and not line.startswith("#"))


def passwords_in(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return passwords by user, without surrounding blanks, as KubeVirt reads them. An empty file has no password."""
    texts = {name: content.decode(errors="replace").strip() for name, content in files.items()}
    return {name: password for name, password in texts.items() if password}
