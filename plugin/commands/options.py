"""What several commands read by their flags."""

from pathlib import Path

from plugin.cards.config import Config


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the one without a file."""
    if path is None:
        return Config()
    # PyYAML is for a file, which most nodes have none of.
    from plugin.config_file import read_config

    return read_config(path)
