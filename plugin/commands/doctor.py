"""`gpu-plugin doctor`: one page for the person whose GPU does not show up."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

import typer

from pci.functions import what
from pci.host import BAR, Details, Function
from plugin.cards.inventory import Device
from plugin.cards.names import read_pci_ids
from plugin.commands.node import NodeFlags, function_as_json, hindrance_as_json, node_now
from plugin.doctor import examine
from plugin.doctor.devices import bus_is_reset_by_vfio, has_no_reset, size
from plugin.doctor.finding import NodeFinding
from plugin.doctor.node import parameters
from plugin.node.snapshot import DeviceState, Snapshot
from program.commands import AsJSON
from program.finding import worst
from program.output import aligned, print_text
from program.problem import Severity
from program.terminal import columns, is_coloured, painted

_COLUMNS = 80  # at most: prose is not read in longer lines
_UNKNOWN = "unknown"


def doctor(flags: NodeFlags, as_json: AsJSON = False) -> None:
    """Say what stands between this node's GPUs and a guest, and what to do about it.

    Nothing is written, and no sleeping card is woken. The exit code is 0 where there is nothing worse than a note, 3
    for warnings, 4 for errors.
    """
    snapshot = node_now(flags, read_pci_ids(flags.pci_ids))
    findings = examine(snapshot)
    text = (
        json.dumps(_as_json(snapshot, findings), indent=2)
        if as_json
        else _as_page(snapshot, findings, coloured=is_coloured(1))
    )
    print_text(f"{text}\n")
    raise typer.Exit(worst(findings).exit_code)


def _as_page(snapshot: Snapshot, findings: tuple[NodeFinding, ...], *, coloured: bool) -> str:
    """Return the page: what is wrong, worst first; what is fine; what is there."""
    counts = Counter(finding.severity for finding in findings)
    lines = [f"Errors: {counts[Severity.ERROR]}, warnings: {counts[Severity.WARNING]}, notes: {counts[Severity.NOTE]}."]
    for severity in sorted(Severity, reverse=True):
        several = [*_alike(finding for finding in findings if finding.severity is severity)]
        for number, alike in enumerate(several):
            if number == 0 or severity > Severity.NOTE:
                lines.append("")
            lines += _about(alike, coloured=coloured)
    functions = [(device, function) for device in snapshot.inventory.devices for function in device.functions]
    header, *rows = aligned([_HEADER, *(_row(snapshot, *each) for each in functions)])
    if snapshot.inventory.devices:
        lines += ["", f"  {header}"]
    for device in snapshot.inventory.devices:
        lines += _heading(snapshot, device)
        lines += [f"  {row}" for (its, _), row in zip(functions, rows, strict=True) if its is device]
    return "\n".join(lines)


def _alike(findings: Iterable[NodeFinding]) -> Iterable[list[NodeFinding]]:
    """Group the findings that say the same of several devices: a node has eight cards of one kind."""
    alike: dict[tuple[bool, str], list[NodeFinding]] = {}
    for finding in findings:
        alike.setdefault((finding.device is None, finding.problem.wrong), []).append(finding)
    return alike.values()


def _about(alike: list[NodeFinding], *, coloured: bool) -> Iterator[str]:
    severity, wrong = alike[0].severity, alike[0].problem.wrong
    devices = ", ".join(finding.device for finding in alike if finding.device is not None)
    label = severity.name if severity is Severity.ERROR else severity.word
    first, *more = _wrapped(f"{label:9}", f"{devices}: {wrong}" if devices else wrong)
    yield painted(label, severity, coloured=coloured) + first.removeprefix(label)
    yield from more
    for step in dict.fromkeys(step for finding in alike for step in (finding.problem.fix, *finding.steps) if step):
        yield from _wrapped(" " * 9 + "-> ", step)


def _wrapped(label: str, text: str) -> list[str]:
    return wrap(
        text,
        min(_COLUMNS, columns()),
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _heading(snapshot: Snapshot, device: Device) -> Iterator[str]:
    """Yield what a device is and whether it is on offer; the reason against it is among the findings."""
    state, user = snapshot.state(device), snapshot.user(device)
    offered = "not offered" if state is DeviceState.WITHHELD else device.resource
    unhealthy = f", {state}" if state in (DeviceState.CORDONED, DeviceState.UNHEALTHY) else ""
    used = "" if user is None else f", in use by {user}"
    yield from _wrapped("", f"{device.id}  {device.model}")
    others = ", ".join(what(member) for member in device.members if member not in device.functions)
    numbers = ", ".join(map(str, device.iommu_groups))
    group = f"group {numbers}{others and ' with '}{others}" if numbers else "no group"
    node = _UNKNOWN if device.numa_node is None else device.numa_node
    yield from _wrapped("  ", f"{offered}{unhealthy}{used}; NUMA node {node}; {group}")


_HEADER = ("FUNCTION", "DRIVER", "POWER", "BAR", "RESETS")


def _row(snapshot: Snapshot, device: Device, function: Function) -> tuple[str, ...]:
    details = snapshot.inspection.details.get(function.address)
    if details is None:
        return (what(function), function.driver or "none", _UNKNOWN, _UNKNOWN, _UNKNOWN)
    if details.reset_methods:
        resets = ", ".join(details.reset_methods)
    elif not has_no_reset(snapshot, details):
        resets = _UNKNOWN
    else:
        resets = "its bus, by VFIO" if bus_is_reset_by_vfio(snapshot, device) else "none"
    return (what(function), function.driver or "none", details.power_state or _UNKNOWN, _largest(details.bars), resets)


def _largest(bars: tuple[BAR, ...] | None) -> str:
    if bars is None:
        return _UNKNOWN
    if not bars:
        return "none"
    largest = max(bars, key=lambda bar: bar.size)
    return f"{largest.number}: {size(largest.size)}"


def _as_json(snapshot: Snapshot, findings: tuple[NodeFinding, ...]) -> dict[str, Any]:
    platform = snapshot.inspection.platform
    return {
        "severity": worst(findings).word,
        "findings": [
            finding.as_json() | {"check": finding.check, "device": finding.device, "steps": list(finding.steps)}
            for finding in findings
        ],
        "platform": {
            "cpuVendor": platform.cpu_vendor,
            "virtualMachine": platform.virtual_machine,
            "parameters": None if platform.command_line is None else list(parameters(platform)),
            "iommus": list(platform.iommus),
            "iommuTables": None if platform.iommu_tables is None else sorted(platform.iommu_tables),
            "interruptRemapping": platform.interrupt_remapping,
            "unsafeInterrupts": platform.unsafe_interrupts,
            "noIOMMUMode": platform.noiommu_mode,
            "memlock": None if platform.memlock is None else platform.memlock._asdict(),
        },
        "devices": [_device_as_json(snapshot, device) for device in snapshot.inventory.devices],
    }


def _device_as_json(snapshot: Snapshot, device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "model": device.model,
        "resource": device.resource,
        "reason": hindrance_as_json(device, snapshot.reason(device)),
        "iommuGroup": device.iommu_group,
        "iommuGroups": list(device.iommu_groups),
        "members": [str(member.address) for member in device.members],
        "numaNode": device.numa_node,
        "functions": [
            function_as_json(function) | _details_as_json(function, snapshot.inspection.details.get(function.address))
            for function in device.functions
        ],
    }


def _details_as_json(function: Function, details: Details | None) -> dict[str, Any]:
    if details is None:
        unknown = ("powerState", "bootVGA", "resetMethods", "d3coldAllowed", "pcieErrors", "bars")
        return dict.fromkeys(unknown)
    return {
        "powerState": details.power_state,
        "bootVGA": function.boot_vga,
        "resetMethods": None if details.reset_methods is None else list(details.reset_methods),
        "d3coldAllowed": details.d3cold_allowed,
        "pcieErrors": None if details.errors is None else details.errors._asdict(),
        "bars": None
        if details.bars is None
        else [{"number": bar.number, "bytes": bar.size, "assigned": bar.assigned} for bar in details.bars],
    }
