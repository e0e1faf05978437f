"""kubectl gpuvm list."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags
from gpuvm.pods import VM, look, vms_in
from program.commands import AsJSON
from program.output import aligned, print_foreign, print_text

_HEAD = ("NAME", "STATE", "AGE", "NODE", "ADDRESS", "CARDS")


def list_vms(
    cluster: ClusterFlags,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of all namespaces.")] = False,
    as_json: AsJSON = False,
) -> None:
    """List the VMs of gpu-launcher's pods."""
    rows = vms_in(look(cluster.kubectl(), everywhere=everywhere))
    if as_json:
        print_text(json.dumps([asdict(vm) for vm in rows], indent=2) + "\n")
        return
    cells = [_row(vm, datetime.now(UTC), everywhere=everywhere) for vm in rows]
    # As wide as it is, as kubectl's own tables are.
    lines = aligned([(*["NAMESPACE"] * everywhere, *_HEAD), *cells]) if cells else ["No VMs found."]
    print_foreign("".join(f"{line}\n" for line in lines))


def _row(vm: VM, now: datetime, *, everywhere: bool) -> tuple[str, ...]:
    cards = ", ".join(vm.cards) + (f" ({', '.join(vm.devices)})" if vm.devices else "")
    cells = (vm.name, vm.state, age(vm.created, now), vm.node, ",".join(vm.addresses), cards)
    return (*[vm.namespace] * everywhere, *(cell or "-" for cell in cells))


def age(created: str, now: datetime) -> str:
    """Return the time since then as kubectl's tables have it, in its largest unit: 90s, 5m, 3h, 12d."""
    try:
        seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
