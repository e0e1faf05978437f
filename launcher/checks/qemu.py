"""Whether QEMU here has what a domain names of it, and whether KVM does what QEMU asks of it.

libvirt's domain capabilities (formatdomaincaps.html) list what QEMU has and libvirt knows.
"""

from typing import NamedTuple
from xml.etree import ElementTree  # lxml costs 5 MB in a process that stays

from launcher.checks.finding import error
from program.child import NoAnswer, output
from program.finding import Finding
from program.problem import Problem
from program.spelling import meant

_WITHIN = 10.0  # seconds for QEMU to make a machine, which takes 0.2
_LONGEST = 300  # characters of what QEMU says

_EMULATED = "max"  # which we write for what is not passed through, and libvirt lists for no hypervisor


class QEMUNames(NamedTuple):
    """The architecture as QEMU calls it, the machine, `kvm` or `qemu`, and the CPU model; None for one of the host's
    modes."""

    architecture: str
    machine: str
    accelerator: str
    model: str | None


def names_in(xml: str) -> QEMUNames:
    """Read the names of a domain of ours."""
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    kind = tree.find("os/type")
    assert kind is not None, "the template has it"
    model = tree.findtext("cpu/model")
    return QEMUNames(kind.get("arch", ""), kind.get("machine", ""), tree.get("type", ""), model)


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
    """Have QEMU make the guest's machine with a CPU, and run nothing in it: no other way tells whether KVM does what
    QEMU asks of it. Return None too if the program cannot be started."""
    machine = f"{names.machine},accel=kvm{',gic-version=host' * (names.architecture == 'aarch64')}"
    empty = ("-S", "-nodefaults", "-no-user-config", "-display", "none", "-m", "16", "-monitor", "stdio")
    command = [program, *empty, "-machine", machine, "-cpu", names.model or "host"]
    fix = "see the node's kernel log, write another spec.domain.cpu.model, or run it with --emulation"
    try:
        done = output(command, within=_WITHIN, given=b"quit\n")
    except OSError:
        return None
    except NoAnswer as silent:
        return error("/dev/kvm", f"does not work: QEMU {silent.problem.wrong}", fix)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if ": warning: " not in line]
    return error("/dev/kvm", f"does not work: QEMU says {' '.join(lines)[:_LONGEST]}", fix)
