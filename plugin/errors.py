"""What can go wrong in the plugin, as one tree.

PluginError
├── UserError     a flag, a file or a config of the user's: exit code 2
└── Refusal       sysfs, the kubelet or the node's state says no: exit code 1, or one gRPC status
"""


class PluginError(Exception):
    """One line: what is wrong, where, and what to do about it."""

    exit_code = 1


class UserError(PluginError):
    exit_code = 2


class Refusal(PluginError):
    exit_code = 1


def one_line(text: object) -> str:
    """The text with whatever would break the line shown as an escape: names come from files and flags."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))
