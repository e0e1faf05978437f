"""Golden cases: each manifest of fixtures/vms says in its comments how it is rendered, and as what.

    # render one-gpu-without-sysfs: --env PCI_RESOURCE_...=0000:01:00.0

is a case whose golden file is fixtures/domains/one-gpu-without-sysfs.xml; the flags are those of `gpu-launcher render`,
with a machine of fixtures/sysfs after --sysfs and a directory of fixtures/dra after --dra. A manifest without such a
line is one case, of its own name, without flags. `# needs libvirt 11.2.0: <table type='msdm'>` and the like, a line
each, keep it from a driver that cannot take it. Manifests in fixtures/refused are not rendered: their `# refused: `
comment is the error, whole.
"""

import argparse
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cpus.host import cpuset_of_flag, processors_of
from launcher.cpus.placement import pinning
from launcher.dra import read_allocated
from launcher.facts import Facts, read_block_sizes
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.hostdevs import passed_on
from launcher.manifest.guest import guest_of
from launcher.manifest.reading import read_manifest
from launcher.versions import Version, parse_version
from pci.host import Host
from pci.processors import UNKNOWN
from pci.sysfs.functions import read_host
from tests.launcher.vms import domain_of
from tests.processes import FIXTURES

VMS = FIXTURES / "vms"
DOMAINS = FIXTURES / "domains"
REFUSED = FIXTURES / "refused"

_FLAGS = argparse.ArgumentParser()
_FLAGS.add_argument("--env", action="append", default=[])
_FLAGS.add_argument("--sysfs")
_FLAGS.add_argument("--dra")
_FLAGS.add_argument("--emulation", action="store_true")
_FLAGS.add_argument("--cpuset")
_FLAGS.add_argument("--block-volume", action="append", default=[])
_FLAGS.add_argument("--raw-image", action="append", default=[])
_FLAGS.add_argument("--block-size", action="append", default=[], type=read_block_sizes)


@dataclass(frozen=True, kw_only=True)
class World:
    """All that a domain is made of beside its manifest."""

    environ: Mapping[str, str]
    sysfs: Path | None
    host: Host | None
    dra: Path | None
    facts: Facts

    def xml(self, vm: Path) -> str:
        """All stages, from the manifest's text to the domain's."""
        vmi = read_manifest(vm)
        entries, guest = vmi.spec.domain.devices.entries, guest_of(vmi)
        allocated = read_allocated(entries, vmi.spec.resourceClaims, self.dra)
        cards, _ = passed_on(entries, self.environ, self.host, allocated, vmi.metadata.annotations.companions)
        facts = replace(self.facts, bars=read_bars(self.sysfs, cards))
        layout = laid_out(guest, cards, self.host, facts, pinning(guest, facts))
        return domain_of(vmi, layout, facts, cards)


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
        flags = _FLAGS.parse_args([*self.flags, *more])
        sysfs = FIXTURES / "sysfs" / flags.sysfs if flags.sysfs else None
        return World(
            environ=dict(setting.split("=", 1) for setting in flags.env),
            sysfs=sysfs,
            host=read_host(sysfs) if sysfs else None,
            dra=FIXTURES / "dra" / flags.dra if flags.dra else None,
            facts=Facts(
                kvm=not flags.emulation,
                cpus=cpuset_of_flag(flags.cpuset),
                processors=processors_of(sysfs) if sysfs else UNKNOWN,
                block=frozenset(flags.block_volume),
                raw_images=frozenset(flags.raw_image),
                block_sizes=dict(flags.block_size),
            ),
        )

    def xml(self, *more: str) -> str:
        return self.world(*more).xml(self.vm)

    def arguments(self) -> list[str | Path]:
        """What follows `gpu-launcher render`."""
        flags = _FLAGS.parse_args(self.flags)
        arguments: list[str | Path] = [self.vm, *self.flags]
        for flag, folder, name in (("--sysfs", "sysfs", flags.sysfs), ("--dra", "dra", flags.dra)):
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
