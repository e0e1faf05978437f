"""`gpu-plugin config`: what can be said of a config file without a node."""

import json
from pathlib import Path
from typing import Annotated

import typer

from plugin.commands.options import config_of

config = typer.Typer(help="Check a config file, or print its JSON schema.", rich_markup_mode=None)


@config.command()
def check(file: Annotated[Path, typer.Argument(help="The config file.")]) -> None:
    """Read a config file as the daemon would: 0 and a word, or one line that says what is wrong with it."""
    found = config_of(file)
    print(f"{file}: fine; rules: {len(found.offer)}, groups: {found.groups}")


@config.command()
def schema() -> None:
    """Print the JSON schema of the file, for editors."""
    from plugin.config_file import schema as schema_of_the_file

    print(json.dumps(schema_of_the_file(), indent=2))
