"""What can go wrong in the launcher, as one tree.

LauncherError
├── UserError     a manifest, a variable or a flag of the user's: exit code 2
└── Refusal       libvirt or the node says no: exit code 1
"""


class LauncherError(Exception):
    """One line: what is wrong, where, and what to do about it."""

    exit_code = 1


class UserError(LauncherError):
    exit_code = 2


class Refusal(LauncherError):
    exit_code = 1


def one_line(text: object) -> str:
    """The text with whatever would break the line shown as an escape: names come from files and flags."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))
