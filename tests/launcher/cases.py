"""Golden cases: each manifest of fixtures/vms says in its comments how it is rendered, and as what.

    # render one-gpu-without-sysfs: --env PCI_RESOURCE_...=0000:01:00.0

is a case whose golden file is fixtures/domains/one-gpu-without-sysfs.xml; the flags are those of `gpu-launcher render`,
with a machine of fixtures/sysfs after --sysfs, a directory of fixtures/dra after --dra, and a file of
fixtures/networks after --network-status. A manifest without such a
line is one case, of its own name, without flags. `# needs libvirt 11.2.0: <table type='msdm'>` and the like, a line
each, keep it from a driver that cannot take it. Manifests in fixtures/refused are not rendered: their `# refused: `
comment is the error, whole.
"""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from typer.main import get_command

from launcher.commands.offline import Offline, facts_of
from launcher.pipeline.described_pod import DescribedPod
from launcher.pipeline.pod import Pod
from launcher.pipeline.start import Start, start_of
from launcher.vm.facts import Facts
from launcher.vm.network.multus import attached_to_the_pod, read_status
from launcher.vm.versions import Version, parse_version
from pci.host import Host
from pci.sysfs.functions import read_host
from program.commands import taken_by_typer
from tests.launcher.vms import read_manifest
from tests.processes import FIXTURES

VMS = FIXTURES / "vms"
DOMAINS = FIXTURES / "domains"
REFUSED = FIXTURES / "refused"
NETWORKS = FIXTURES / "networks"

_RENDER = typer.Typer()


@_RENDER.command()
@taken_by_typer
def _render(flags: Offline) -> Offline:
    return flags


_COMMAND = get_command(_RENDER)


@dataclass(frozen=True, kw_only=True)
class World:
    """All that a domain is made of beside its manifest."""

    pod: Pod
    facts: Facts
    network_status: str | None = None

    @property
    def host(self) -> Host | None:
        return None if self.pod.sysfs is None else read_host(self.pod.sysfs)

    def start(self, vm: Path) -> Start:
        """All stages, from the manifest's text to the domain's."""
        vmi, facts = read_manifest(vm), self.facts
        if self.network_status is not None:
            statuses = read_status(self.network_status, "--network-status")
            facts = replace(facts, pod_interfaces=attached_to_the_pod(vmi.spec, statuses))
        return start_of(vmi, self.pod, DescribedPod(known_facts=facts))

    def xml(self, vm: Path) -> str:
        """The domain's text; the first error, where there is one instead, is raised."""
        start = self.start(vm)
        for error in start.errors:
            raise error
        assert start.xml is not None
        return start.xml


@dataclass(frozen=True)
class Case:
    """A manifest and the flags to render it with; `name` is its golden file's."""

    name: str
    vm: Path
    flags: tuple[str, ...]

    @property
    def libvirt(self) -> Version | None:
        """The oldest libvirt that takes it, where the manifest says `# needs libvirt 11.2.0: why`."""
        said = [need.removeprefix("libvirt ") for need in self._said if need.startswith("libvirt ")]
        return parse_version(*said) if said else None

    @property
    def needs(self) -> tuple[str, ...]:
        """What else the manifest says that not every machine has: `SEV`, or a QEMU by its name."""
        return tuple(need for need in self._said if not need.startswith("libvirt "))

    @property
    def _said(self) -> list[str]:
        return re.findall(r"^# needs ([^:\n]+):", self.vm.read_text(), re.MULTILINE)

    @property
    def golden(self) -> Path:
        return DOMAINS / f"{self.name}.xml"

    def world(self, *more: str) -> World:
        """What the flags say; `more` of them may be given."""
        flags = self._read(*more)
        return World(
            pod=Pod(
                environ=dict(setting.split("=", 1) for setting in flags.env or []),
                sysfs=FIXTURES / "sysfs" / flags.sysfs if flags.sysfs else None,
                dra=FIXTURES / "dra" / flags.dra if flags.dra else None,
                offline=True,
            ),
            facts=facts_of(flags),
            network_status=(NETWORKS / flags.network_status).read_text() if flags.network_status else None,
        )

    def _read(self, *more: str) -> Offline:
        flags: Offline = _COMMAND.main([str(self.vm), *self.flags, *more], standalone_mode=False)
        return flags

    def xml(self, *more: str) -> str:
        return self.world(*more).xml(self.vm)

    def arguments(self) -> list[str | Path]:
        """What follows `gpu-launcher render`."""
        flags = self._read()
        arguments: list[str | Path] = [self.vm, *self.flags]
        files = (
            ("--sysfs", "sysfs", flags.sysfs),
            ("--dra", "dra", flags.dra),
            ("--network-status", "networks", flags.network_status),
        )
        for flag, folder, name in files:
            if name is not None:
                arguments[arguments.index(flag) + 1] = FIXTURES / folder / name
        return arguments


def cases(*vms: Path) -> tuple[Case, ...]:
    """The cases of these manifests, or of all in fixtures/vms."""
    return tuple(case for vm in vms or sorted(VMS.glob("*.yaml")) for case in _cases_of(vm))


def case(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


def _cases_of(vm: Path) -> list[Case]:
    said = re.findall(r"^# render ([a-z0-9-]+):(.*)$", vm.read_text(), re.MULTILINE)
    return [Case(name, vm, tuple(shlex.split(flags))) for name, flags in said or [(vm.stem, "")]]
