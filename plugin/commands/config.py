"""`gpu-plugin config`: what can be said of a config file without a node."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pci.vendors import PREFIXES
from plugin.cards.config import SELECTORS, Bind, Config, DeadlyResets, Groups, Rule
from plugin.cards.vgpu_rules import VGPURule
from plugin.config_file import read_config, shadowed_in, written_out
from plugin.config_file import schema as schema_of_the_file
from program.commands import AsJSON, taken_by_typer
from program.output import print_text
from program.problem import one_line

config = typer.Typer(help="Say what a config file means, or print its JSON schema.", rich_markup_mode=None)


@config.command()
@taken_by_typer
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config file.")], as_json: AsJSON = False
) -> None:
    """Read a config file as the daemon would: 0 and what it means, or one line that says what is wrong with it.

    A rule that never counts is a warning.
    """
    read = read_config(file)
    for problem in shadowed_in(file, read):
        print(f"gpu-plugin: warning: {problem}", file=sys.stderr)
    if as_json:
        print_text(json.dumps(written_out(read), indent=2) + "\n")
        return
    print_text("\n".join([f"{file}: fine", *in_words(read), ""]))


def in_words(config: Config) -> list[str]:
    """Return all that a config means, also by what it leaves out, a line each."""
    lines = [one_line(f"{number}. {_rule(rule)}") for number, rule in enumerate(config.offer, start=1)]
    gpus = "other GPUs of NVIDIA, AMD and Intel" if lines else "GPUs of NVIDIA, AMD and Intel"
    prefixes = ", ".join(f"{prefix}/..." for prefix in PREFIXES.values())
    lines.append(f"{gpus}, and their mediated devices: by model or type, as {prefixes}")
    lines.append("anything else: not offered")
    together = config.groups is Groups.TOGETHER
    lines.append(
        f"an IOMMU group of several of these: {'one unit' if together else 'withheld'} (groups: {config.groups})"
    )
    is_withheld = config.deadly_resets is DeadlyResets.WITHHOLD
    lines.append(
        f"models that do not survive a reset: {'withheld' if is_withheld else 'offered, and the doctor warns'} "
        f"(deadly_resets: {config.deadly_resets})"
    )
    if config.uses_dra:
        bound = "bound for the claim that gets it"
        is_bound = config.bind is Bind.WHEN_CLAIMED
        lines.append(f"by DRA, a card that is not on vfio: {bound if is_bound else 'withheld'} (bind: {config.bind})")
    lines += [f"of the free {resource}: {policy}" for resource, policy in config.prefer.items()]
    lines.append(f"of {'all others' if config.prefer else 'the free devices'}: those nearest to each other")
    for device, count in config.node_devices.items():
        lines.append(f"/dev/{device.node}: as {device.resource()}, for {count} containers at once")
    if not config.node_devices:
        lines.append("node devices, like /dev/kvm: none")
    lines += [f"of {resource}: all to one container, or none" for resource in config.whole]
    if config.fabric is not None:
        after = "takes its list back" if config.fabric.resume else "begins with no partition"
        lines.append(
            one_line(
                f"NVLink in guests: by the Fabric Manager at {config.fabric.manager}, which {after} after a restart"
            )
        )
    lines += [one_line(f"of {_cards(rule)}: {_cut(rule)}, by gpu-plugin vgpus") for rule in config.vgpus]
    return lines


def _cards(rule: VGPURule) -> str:
    selectors = {"vendor": rule.vendor, "device": rule.device, "subsystem": rule.subsystem}
    fits = [f"{name} {value}" for name, value in selectors.items() if value is not None]
    return ", ".join([*fits, *([f"address {' or '.join(rule.address)}"] if rule.address else [])])


def _cut(rule: VGPURule) -> str:
    if rule.functions is None:
        return ", ".join(f"{count} vGPUs of type {name}" for name, count in rule.types.items())
    return ", ".join([f"{rule.functions} virtual functions", *(f"{quota} {n} each" for quota, n in rule.quota.items())])


def _rule(rule: Rule) -> str:
    selectors = {name: getattr(rule, name) for name in SELECTORS}
    fits = ", ".join(f"{name} {' or '.join(values)}" for name, values in selectors.items() if values)
    if rule.withhold:
        return f"{fits}: withheld"
    name = f"as {rule.resource}" if rule.resource is not None else f"by model or type, as {rule.prefix}/..."
    bound = []
    if rule.reset_method is not None:
        bound.append(f"reset_method {' '.join(rule.reset_method) or 'empty'}")
    if rule.d3cold_allowed is not None:
        bound.append(f"d3cold_allowed {int(rule.d3cold_allowed)}")
    return f"{fits}: {name}{', while on vfio with ' if bound else ''}{' and '.join(bound)}"


@config.command()
def schema() -> None:
    """Print the JSON schema of the file, for editors."""
    print_text(json.dumps(schema_of_the_file(), indent=2) + "\n")
