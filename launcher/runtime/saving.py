"""Saves a domain's memory and devices to a file of libvirt's, and restores it; reports what QEMU cannot save."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import libvirt
import libvirt_qemu

from launcher.runtime.guest import asking_libvirt, qemu_of
from launcher.runtime.memory_file import NAMESPACE, PREFIX, GuestMark, MemoryFile, Restored, processor_in
from launcher.vm.versions import kernel_version as version_in
from program.errors import Refusal
from program.problem import Problem

_NEVER = (1000, 0, 0)
_HIBERNATE = "the guest's own hibernation may keep what is in it"


def kept_back(domain: Any) -> Iterator[Problem]:
    """Yield a problem for each reason why QEMU cannot save this domain now. Refusal if QEMU does not answer."""
    with asking_libvirt("ask QEMU whether it can save the domain"):
        answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, json.dumps({"execute": "query-migrate"}), 0))
    for reason in answer.get("return", {}).get("blocked-reasons", ()):
        yield Problem("QEMU", f"cannot save the guest: {str(reason)[:300]}", _HIBERNATE)


def mark_of(domain: Any, *, ran: bool) -> GuestMark:
    """Return the mark of a domain that is being suspended on this node."""
    return GuestMark(qemu_of(domain), processor(), ran)


def processor(proc: Path = Path("/proc")) -> str:
    try:
        return processor_in((proc / "cpuinfo").read_text(errors="replace"))
    except OSError:
        return ""


def save(domain: Any, file: Path, mark: GuestMark) -> None:
    """Write a paused domain's memory and devices to the file, and leave the domain as it is.

    This is a snapshot of the memory alone. virDomainSave writes the same, but ends QEMU before anybody can make sure
    that the file is on disk.
    """
    with asking_libvirt("save the domain"):
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, mark.element(), PREFIX, NAMESPACE, live)
        disks = ElementTree.fromstring(domain.XMLDesc()).iterfind("devices/disk/target")  # noqa: S314 libvirt's
        names = "".join(f"<disk name={quoteattr(each.get('dev', ''))} snapshot='no'/>" for each in disks)
        memory = f"<memory snapshot='external' file={quoteattr(str(file))}/>"
        xml = f"<domainsnapshot>{memory}<disks>{names}</disks></domainsnapshot>"
        domain.snapshotCreateXML(xml, libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA)


def progress(domain: Any) -> int:
    """Return how many bytes of memory of a domain that is being saved are done. Refusal if libvirt does not answer."""
    with asking_libvirt("tell how far it is"):
        return int(domain.jobStats().get("memory_processed", 0))


def break_off(domain: Any) -> None:
    """Have libvirt give up saving the domain."""
    with asking_libvirt("give up saving the domain"):
        domain.abortJob()


def restore(domain: Any, xml: str, memory: MemoryFile) -> Restored | None:
    """Start the domain from its file, with its CPUs stopped; None if there is no file.

    Host devices and paths are those of `xml`. Refusal if the file is another guest's, or needs another QEMU or
    processor; the file stays.
    """
    mark = memory.found()
    if mark is None:
        return None
    refuse_other_node(domain, xml, mark, memory.whole)
    fix = "resume it with the manifest that it was suspended with, or remove the file to have the guest start anew"
    with asking_libvirt(f"resume the guest of {memory.whole}", fix):
        domain.connect().restoreFlags(str(memory.whole), xml, libvirt.VIR_DOMAIN_SAVE_PAUSED)
    return Restored(mark, memory)


def refuse_other_node(domain: Any, xml: str, mark: GuestMark, subject: object) -> None:
    """Raise Refusal if the guest of this mark needs another QEMU or processor than this node has. `subject` has it."""
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    emulator = qemu_of(domain)
    if (version_in(mark.qemu) or _NEVER) > (version_in(emulator) or _NEVER):
        fix = "resume it with the launcher's image that suspended it, or a later one"
        raise Refusal(subject, f"was written by QEMU {mark.qemu}, and here is the older {emulator}", fix)
    cpu = tree.find("cpu")
    is_hosts = cpu is not None and cpu.get("mode") in ("host-passthrough", "maximum")
    if is_hosts and mark.processor != (its := processor()):
        raise Refusal(
            subject,
            f"its guest has the processor itself, {mark.processor}, and here is {its}",
            "resume it on a node with the same processor, or give the next VM cpu.model host-model or a named one",
        )
