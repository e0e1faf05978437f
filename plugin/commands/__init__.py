"""gpu-plugin's commands, a module each: flags and files to the stages of the plugin, and the answer to the user."""

from pathlib import Path

from plugin.cards.config import Config


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the empty one for None."""
    if path is None:
        return Config()
    # It imports PyYAML and pydantic, and most nodes have no config file.
    from plugin.config_file import read_config

    return read_config(path)
