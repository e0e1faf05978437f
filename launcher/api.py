"""The Python API: docs/python.md says what of it is promised."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.manifest.identity import known_in
from launcher.manifest.parser import vm_in
from launcher.pipeline.described_pod import DescribedPod
from launcher.pipeline.pod import Pod
from launcher.pipeline.start import start_of
from launcher.vm.facts import Facts
from program.errors import ProgramError, Refusal, UserError, together
from program.problem import Problem

__all__ = ["Domain", "Problem", "ProgramError", "Refusal", "UserError", "render"]


@dataclass(frozen=True)
class Domain:
    """A libvirt domain: its XML, and what a person should know of it."""

    xml: str
    warnings: tuple[Problem, ...]


def render(
    manifest: str | Mapping[str, Any], environ: Mapping[str, str], *, sysfs: str | os.PathLike[str] | None = None
) -> Domain:
    """Return the domain of a VM, as `gpu-launcher render` prints it.

    `manifest` is a VirtualMachine or VirtualMachineInstance: a text of YAML or JSON, which may have instance types and
    preferences beside it, or the object. `environ` are the variables of the VM's pod, like
    {"PCI_RESOURCE_NVIDIA_COM_PGPU": "0000:01:00.0"}; this process's are not read. `sysfs` is a directory like /sys;
    without it, a card goes without its other functions. The same arguments give the same bytes on every machine.

    UserError for a manifest or a variable that is wrong, Refusal for a node that cannot do it; ProgramError is both.
    """
    text = manifest if isinstance(manifest, str) else _text(manifest)
    parsed = vm_in(text, known_in(environ, None))
    pod = Pod(environ=environ, sysfs=None if sysfs is None else Path(sysfs), offline=True)
    start = start_of(parsed.instance, pod, DescribedPod(known_facts=Facts(block=parsed.block)))
    if start.errors:
        raise together(start.errors)
    assert start.xml is not None, "nothing was refused"
    return Domain(start.xml, tuple(finding.problem for finding in start.warnings))


def _text(manifest: Mapping[str, Any]) -> str:
    try:
        return json.dumps(manifest, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        fix = "expected a VirtualMachine or VirtualMachineInstance of what JSON has: texts, numbers, lists, dicts"
        raise UserError("the manifest", f"is no object: {error}", fix) from error
