"""The keys and passwords of a guest's users, as the pod has their secrets mounted.

It knows nothing of manifests, as what stays beside the guest reads them again when they change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.storage.kubelet_files import mounted_files


@dataclass(frozen=True, slots=True)
class AgentCredential:
    """A `secret`, mounted at `directory`, that the guest's agent is to apply: as ssh keys of these users, or, where
    there are none, as passwords of the users that its files are named after."""

    secret: str
    directory: Path
    users: tuple[str, ...] = ()

    def files(self) -> Mapping[str, bytes]:
        """Content by name. Refusal where they cannot be read."""
        return mounted_files(self.secret, self.directory)


def keys_in(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The public keys in the files, in the order of their names: each line that is no comment is one."""
    lines = (
        line.strip() for _, content in sorted(files.items()) for line in content.decode(errors="replace").split("\n")
    )
    return tuple(line for line in lines if line and not line.startswith("#"))


def passwords_in(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """The passwords by user, as KubeVirt takes them: without blanks around; a file without anything else has none."""
    texts = {name: content.decode(errors="replace").strip() for name, content in files.items()}
    return {name: password for name, password in texts.items() if password}
