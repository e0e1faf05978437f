"""gpu-plugin's command line: each command is a module of plugin.commands."""

import typer

from plugin.commands.bind import bind, unbind
from plugin.commands.config import config
from plugin.commands.doctor import doctor
from plugin.commands.inventory import inventory
from plugin.commands.record import record
from plugin.commands.serve import serve

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Offers a node's passthrough GPUs to the kubelet.",
)
app.command()(inventory)
app.command()(doctor)
app.command()(serve)
app.command()(record)
app.command()(bind)
app.command()(unbind)
app.add_typer(config, name="config")
