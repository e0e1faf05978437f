"""Checks that this machine's libvirt and QEMU have what a domain names, and that KVM does what QEMU asks of it.

libvirt's domain capabilities (formatdomaincaps.html) list what QEMU has and libvirt knows.
"""

from typing import NamedTuple
from xml.etree import ElementTree  # lxml costs 5 MB in a process that stays

from launcher.vm.checks import error
from program.child import NoAnswer, output
from program.finding import Finding
from program.problem import Problem
from program.spelling import meant

_WITHIN = 10.0  # seconds for QEMU to make a machine, which takes 0.2
_LONGEST = 300  # characters of what QEMU says

#: Of Hyper-V's features those that are more than yes or no; QEMU's own CPU takes them.
_WITH_VALUES = ("spinlocks", "vendor_id")
_EMULATED = "max"  # which we write for what is not passed through, and libvirt lists for no hypervisor


class QEMUNames(NamedTuple):
    """What a domain names, in QEMU's words. `accelerator`: `kvm` or `qemu`. `model`: the CPU model, None for a mode of
    the host's. `hyperv`: the Hyper-V features that are switched on and take no value. `by_passt`: the alias of the
    first network card that passt connects, None without one."""

    architecture: str
    machine: str
    accelerator: str
    model: str | None
    hyperv: tuple[str, ...] = ()
    by_passt: str | None = None


def names_in(xml: str) -> QEMUNames:
    """Read the names of a domain of ours."""
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    kind = tree.find("os/type")
    assert kind is not None, "the template has it"
    cards = [card for card in tree.iterfind("devices/interface") if card.find("backend[@type='passt']") is not None]
    return QEMUNames(
        architecture=kind.get("arch", ""),
        machine=kind.get("machine", ""),
        accelerator=tree.get("type", ""),
        model=tree.findtext("cpu/model"),
        hyperv=tuple(
            f"hv-{each.tag.replace('_', '-')}"
            for each in tree.iterfind("features/hyperv/*[@state='on']")
            if each.tag not in _WITH_VALUES
        ),
        by_passt=next((alias.get("name", "") for card in cards for alias in card.iterfind("alias")), None),
    )


def least_on_passt(names: QEMUNames) -> str:
    """Return the smallest domain with a network card on passt. A libvirt built without passt, as Debian 12's, cannot
    read it."""
    return (
        f"<domain type='{names.accelerator}'><name>passt</name><memory>65536</memory>"
        f"<os><type arch='{names.architecture}' machine='{names.machine}'>hvm</type></os>"
        "<devices><interface type='user'><backend type='passt'/></interface></devices></domain>"
    )


def without_passt(names: QEMUNames) -> Problem:
    name = str(names.by_passt).removeprefix("ua-")
    return Problem(
        f"interface {name!r}",
        "is passt's, and the libvirt here is built without it, as Debian 12's",
        "use gpu-launcher's image or the libvirt of Debian 13, or give the guest no network "
        "(devices.autoattachPodInterface: false)",
    )


def unknown_model(names: QEMUNames, capabilities: str) -> Problem | None:
    """Return what is wrong with a CPU model that is not among those of libvirt's domain capabilities, an XML text."""
    tree = ElementTree.fromstring(capabilities)  # noqa: S314 libvirt has made it
    known = [model.text or "" for model in tree.iterfind("cpu/mode[@name='custom']/model")]
    if names.model in (None, _EMULATED, *known) or not known:
        return None
    near = meant(str(names.model), known)
    fix = f"did you mean {near}?" if near else "expected host-model, host-passthrough, or one of virsh domcapabilities"
    return Problem("spec.domain.cpu.model", f"{names.model} is no CPU model that libvirt and QEMU know here", fix)


def broken_kvm(program: str, names: QEMUNames) -> Finding | None:
    """Return what is wrong if QEMU cannot make the guest's machine and CPU on KVM. QEMU makes them and runs nothing:
    only this shows whether KVM does what QEMU asks of it. Return None also if the program cannot be started."""
    machine = f"{names.machine},accel=kvm{',gic-version=host' * (names.architecture == 'aarch64')}"
    says = _refused(program, machine, names.model or "host")
    fix = "see the node's kernel log, write another spec.domain.cpu.model, or run it with --emulation"
    return None if says is None else error("/dev/kvm", f"does not work: QEMU {says}", fix)


def broken_emulation(program: str, names: QEMUNames) -> Finding | None:
    """Return what is wrong if QEMU's own CPU lacks the guest's Hyper-V features, as broken_kvm() does. QEMU 7.2's CPU
    lacks vpindex, and all that needs it."""
    says = (
        _refused(program, f"{names.machine},accel=tcg", ",".join((_EMULATED, *names.hyperv))) if names.hyperv else None
    )
    fix = "run it with KVM, or leave out vpindex, synic, synictimer, tlbflush and ipi"
    wrong = f"QEMU's own CPU cannot have them: QEMU {says}"
    return None if says is None else error("spec.domain.features.hyperv", wrong, fix)


def _refused(program: str, machine: str, cpu: str) -> str | None:
    """Return why QEMU cannot make this machine and CPU; None if it can, or if the program cannot be started."""
    empty = ("-S", "-nodefaults", "-no-user-config", "-display", "none", "-m", "16", "-monitor", "stdio")
    try:
        done = output([program, *empty, "-machine", machine, "-cpu", cpu], within=_WITHIN, stdin=b"quit\n")
    except OSError:
        return None
    except NoAnswer as silent:
        return silent.problem.wrong
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if ": warning: " not in line]
    return f"says {' '.join(lines)[:_LONGEST]}"
