"""Findings about a node as a whole: the IOMMU, interrupts, VFIO's modules and nodes, partitions.

Pure: from a snapshot to findings. A finding says so if its part of the node could not be read.
"""

from collections.abc import Iterator
from dataclasses import replace

from pci.functions import is_vfio_driver
from pci.host import Platform, TransparentPages
from pci.sysfs.attribute import Silent
from pci.viability import END_THE_WAIT
from plugin.cards.inventory import BMC_SCREEN, CONSOLE
from plugin.doctor.devices import is_the_nodes
from plugin.doctor.finding import Check, NodeFinding, error, fine, note, warning
from plugin.doctor.iommu import groups, of_iommu, processor, without_effect
from plugin.fabric.status import unknown
from plugin.node.snapshot import Snapshot
from program.problem import Problem, Severity

#: Parameters of the kernel that have to do with passthrough: whole names, and beginnings.
_PARAMETERS = ("amd_iommu", "intel_iommu", "intremap", "iommu", "nointremap", "pci", "pcie_acs_override")
_PARAMETERS_OF_MODULES = ("iommu.", "iommufd.", "vfio.", "vfio_iommu_type1.", "vfio_pci.")


def of_node(snapshot: Snapshot) -> tuple[NodeFinding, ...]:
    """Return all findings about the node, also OK ones. An error about VFIO is only a note on a node without devices
    for it."""
    about_vfio = _about_vfio(snapshot)
    if not _has_gpus(snapshot):
        about_vfio = tuple(
            replace(finding, severity=Severity.NOTE) if finding.severity is Severity.ERROR else finding
            for finding in about_vfio
        )
    return (
        _offer(snapshot),
        *_not_read(snapshot),
        *_virtual_machine(snapshot.inspection.platform),
        *about_vfio,
        *_memlock(snapshot.inspection.platform),
        *_huge_pages(snapshot.inspection.platform.transparent),
        *_fabric(snapshot),
        *_mdevs(snapshot),
    )


def _about_vfio(snapshot: Snapshot) -> tuple[NodeFinding, ...]:
    return (
        of_iommu(snapshot),
        *_command_line(snapshot.inspection.platform),
        *_interrupts(snapshot),
        *_noiommu_mode(snapshot.inspection.platform),
        _vfio_driver(snapshot),
        _vfio_iommu(snapshot.inspection.platform),
        _device_nodes(snapshot),
    )


def parameters(platform: Platform) -> tuple[str, ...]:
    """Return the parameters of the kernel's command line that concern passthrough, in its order."""
    return tuple(
        parameter
        for parameter in platform.command_line or ()
        for name in [parameter.partition("=")[0].replace("-", "_")]
        if name in _PARAMETERS or name.startswith(_PARAMETERS_OF_MODULES)
    )


def _mdevs(snapshot: Snapshot) -> Iterator[NodeFinding]:
    """Yield a note on KubeVirt's handling of mediated devices: its CR cannot be seen from the node."""
    mdevs = snapshot.host.mdevs
    more = ", more when they are claimed" if any(card.mediated for card in snapshot.claimable) else ""
    if mdevs or more:
        yield note(
            Check.MDEVS,
            f"has {len(mdevs)} mediated devices{more}, and KubeVirt's virt-handler removes those that nobody has open "
            "and that its CR does not name",
            "name them as gpu-plugin inventory --permitted does, or set mediatedDevicesConfiguration.enabled: false",
        )


def _fabric(snapshot: Snapshot) -> Iterator[NodeFinding]:
    """Yield the findings about the partitions that give guests their NVLinks."""
    sight, devices = snapshot.partitions, snapshot.inventory.devices
    if sight is None:
        return
    if sight.board is None:
        trouble = sight.trouble or Problem("the Fabric Manager", "was not asked", "report it")
        yield error(
            Check.FABRIC,
            f"has no partitions of GPUs, so that guests of several have no NVLink: {trouble.subject}: {trouble.wrong}",
            trouble.fix,
            "see whether the Fabric Manager runs in its shared mode (FABRIC_MODE=1), and what the config says of it",
        )
        return
    table, ids = sight.board.table, sight.board.ids
    total = sum(bool(sight.board.gpus(device)) for device in devices)
    words = f"{len(table.partitions)} partitions of GPUs, {len(table.active)} active"
    which = sight.board.version or "of unknown version"
    yield fine(
        Check.FABRIC,
        f"the Fabric Manager ({which}) lists {words}; module IDs are known for {len(ids.by_address)} of {total} GPUs",
    )
    for device in unknown(sight, snapshot.inventory):
        yield warning(
            Check.FABRIC,
            "has no known module ID: it is for guests of one GPU only",
            "let gpu-plugin bind read it before vfio has the card, or write it to fabric.modules of the config",
            of=device.id,
        )
    for partition in sight.others:
        yield warning(
            Check.FABRIC,
            f"partition {partition.id} is active, and gpu-plugin does not know for whom: its cards are given to nobody",
            f"end its guest, then deactivate it: fmpm -d {partition.id}",
        )
    for what_failed in table.failed:
        yield warning(Check.FABRIC, f"{what_failed} has NVLinks that failed", "reset it, or have it replaced")
    if table.unsupported:
        numbers = ", ".join(map(str, table.unsupported))
        wrong = f"the Fabric Manager has taken these partitions off its table, for NVLinks that failed: {numbers}"
        yield warning(Check.FABRIC, wrong, "reset what failed, or have it replaced, and restart the manager")


def _has_gpus(snapshot: Snapshot) -> bool:
    """True if the node has a device beside its own screens: a server's BMC, another console, or the processor's own GPU
    on its host's driver."""
    return any(
        device.mdev is not None or not (device.withheld in (BMC_SCREEN, CONSOLE) or is_the_nodes(snapshot, device))
        for device in snapshot.inventory.devices
    )


def _offer(snapshot: Snapshot) -> NodeFinding:
    if not _has_gpus(snapshot):
        own = " but its own screen" if snapshot.inventory.devices else ""
        return note(
            Check.OFFER,
            f"this node has no GPU{own}, and no device that the config offers",
            "if it should have one, see whether lspci -nn lists it, and if not, its seat, its power and 'Above 4G "
            "Decoding' in the firmware",
        )
    ready = sum(snapshot.reason(device) is None for device in snapshot.inventory.devices)
    words = f"devices that can be handed out: {ready} of {len(snapshot.inventory.devices)}"
    if ready:
        return fine(Check.OFFER, words)
    return error(Check.OFFER, words, "what is said of each device says why, and what to do")


def _not_read(snapshot: Snapshot) -> Iterator[NodeFinding]:
    for fault in (*snapshot.not_read, *snapshot.inspection.platform.faults, *snapshot.inspection.faults):
        if isinstance(fault, Problem):
            yield warning(Check.STATE, f"not read: {fault.subject}: {fault.wrong}", fault.fix)
        elif fault.wrong == Silent.WRONG:
            yield error(Check.SYSFS, f"{fault.path}: unknown, {fault.wrong}", END_THE_WAIT)
        else:
            yield warning(Check.SYSFS, f"not read: {fault}", "for a bug report: gpu-plugin record DIR")


def _virtual_machine(platform: Platform) -> Iterator[NodeFinding]:
    if platform.virtual_machine:
        yield note(
            Check.VIRTUAL_MACHINE,
            "this node is a virtual machine itself, with the IOMMU and the devices that its hypervisor gives it",
        )


def _command_line(platform: Platform) -> Iterator[NodeFinding]:
    if platform.command_line is None:
        yield note(
            Check.COMMAND_LINE,
            "the kernel's command line is unknown: /proc was not looked at",
            "gpu-plugin doctor --proc DIR",
        )
        return
    words = " ".join(parameters(platform)) or "nothing about passthrough"
    yield fine(Check.COMMAND_LINE, f"the kernel's command line says {words}")
    for parameter in without_effect(platform):
        yield note(
            Check.COMMAND_LINE,
            f"the kernel's command line says {parameter}, which has no effect on {processor(platform)}",
            f"take {parameter} out of the kernel's command line, or leave it",
        )
    for parameter in platform.command_line:
        if parameter.startswith("pcie_acs_override="):
            yield warning(
                Check.ACS_OVERRIDE,
                f"the kernel's command line says {parameter}: IOMMU groups look smaller than they are, and guests can "
                "reach each other's devices past the IOMMU",
                f"take {parameter} out of the kernel's command line",
                "use slots whose root port or switch has ACS",
            )


def _interrupts(snapshot: Snapshot) -> Iterator[NodeFinding]:
    if not groups(snapshot):
        return  # the IOMMU remaps them; another finding says that there is none
    platform = snapshot.inspection.platform
    modules = sorted(module for module, allowed in (platform.unsafe_interrupts or {}).items() if allowed)
    unsafe = f"allow_unsafe_interrupts of {' and '.join(modules)} is on"
    forbid = "take allow_unsafe_interrupts out of /etc/modprobe.d and the kernel's command line"
    if platform.interrupt_remapping:
        yield fine(Check.INTERRUPTS, "interrupts are remapped")
        if modules:
            yield note(Check.INTERRUPTS, f"{unsafe}, and is not needed: interrupts are remapped", forbid)
    elif platform.interrupt_remapping is None and modules:
        yield warning(
            Check.INTERRUPTS,
            f"whether interrupts are remapped is unknown, and {unsafe}: a guest might raise any interrupt of the node",
            forbid,
        )
    elif platform.interrupt_remapping is None:
        yield note(Check.INTERRUPTS, "whether interrupts are remapped is unknown")
    elif modules:
        yield warning(
            Check.INTERRUPTS,
            f"interrupts are not remapped, and {unsafe}: a guest can raise any interrupt of the node",
            _remaps_interrupts(platform),
        )
    else:
        yield error(
            Check.INTERRUPTS,
            "interrupts are not remapped, and VFIO gives no guest a device",
            _remaps_interrupts(platform),
            "or, at the node's risk, boot with vfio_iommu_type1.allow_unsafe_interrupts=1",
        )


def _remaps_interrupts(platform: Platform) -> str:
    off = " ".join(line for line in platform.command_line or () if line in ("intremap=off", "nointremap"))
    if off:
        return f"take {off} out of the kernel's command line, and reboot"
    if platform.virtual_machine:
        return "to the libvirt domain of this node: <driver intremap='on'/> in its <iommu>"
    return "turn on interrupt remapping, or x2APIC, in the firmware"


def _noiommu_mode(platform: Platform) -> Iterator[NodeFinding]:
    if platform.noiommu_mode:
        yield warning(
            Check.NO_IOMMU_MODE,
            "vfio's no-IOMMU mode is on: a device that is used in it can write to all memory of the node",
            "turn it off, now and at every boot",
            "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
            "take enable_unsafe_noiommu_mode out of /etc/modprobe.d and the kernel's command line",
        )


def _vfio_driver(snapshot: Snapshot) -> NodeFinding:
    bound = {function.driver for function in snapshot.host.functions.values() if function.driver is not None}
    drivers = snapshot.inspection.platform.drivers
    for_vfio = sorted(filter(is_vfio_driver, bound | (drivers or frozenset())))
    if for_vfio:
        return fine(Check.VFIO_DRIVER, f"drivers that give devices to VFIO: {', '.join(for_vfio)}")
    if drivers is None:
        return note(Check.VFIO_DRIVER, "whether the kernel has the driver vfio-pci is unknown")
    return error(
        Check.VFIO_DRIVER,
        "the kernel has no driver that gives devices to VFIO: the module vfio-pci is not loaded",
        "load it, now and at every boot",
        "modprobe vfio-pci",
        "echo vfio-pci > /etc/modules-load.d/vfio-pci.conf",
    )


def _vfio_iommu(platform: Platform) -> NodeFinding:
    if platform.unsafe_interrupts is None:
        return note(Check.VFIO_IOMMU, "whether the modules vfio_iommu_type1 and iommufd are loaded is unknown")
    if platform.unsafe_interrupts:
        modules = ", ".join(sorted(platform.unsafe_interrupts))
        return fine(Check.VFIO_IOMMU, f"modules that map a guest's memory: {modules}")
    return error(
        Check.VFIO_IOMMU,
        "nothing can map a guest's memory: neither vfio_iommu_type1 nor iommufd is loaded",
        "load one of them, now and at every boot",
        "modprobe vfio_iommu_type1",
        "echo vfio_iommu_type1 > /etc/modules-load.d/vfio_iommu_type1.conf",
    )


def _device_nodes(snapshot: Snapshot) -> NodeFinding:
    nodes = snapshot.nodes
    if nodes is None:
        return note(
            Check.DEVICE_NODES,
            "VFIO's device nodes are unknown: /dev was not looked at",
            "gpu-plugin doctor --dev DIR",
        )
    ways = ("/dev/vfio/vfio",) * nodes.has_groups + ("/dev/iommu with /dev/vfio/devices",) * nodes.has_cdevs
    if ways:
        return fine(Check.DEVICE_NODES, f"ways into VFIO: {', '.join(ways)}")
    return error(
        Check.DEVICE_NODES,
        "there is no way into VFIO: neither /dev/vfio/vfio nor /dev/iommu with /dev/vfio/devices exists",
        "load VFIO's modules, and in a pod mount /dev/vfio into it",
        "modprobe -a vfio_iommu_type1 vfio-pci",
    )


def _memlock(platform: Platform) -> Iterator[NodeFinding]:
    """Yield a finding about how much memory a VM's pod may lock; nothing if the limit is unknown."""
    if platform.memlock is None:
        return
    process, limit = platform.memlock
    if limit is None:
        yield fine(Check.MEMLOCK, f"containers may lock memory without a limit, as {process} may")
    else:
        yield note(
            Check.MEMLOCK,
            f"containers may lock {limit / 2**20:g} MiB of memory, as {process} may: a VM with GPUs locks its own and "
            "1 GiB, so its pod takes SYS_RESOURCE and the Pod Security level privileged",
            "for VMs at another level copy deploy/node/memlock.conf to the node, or crio.conf: docs/restricted.md",
        )


def _huge_pages(transparent: TransparentPages) -> Iterator[NodeFinding]:
    """Yield findings about huge pages, which make a VM with GPUs start faster; nothing about an unknown setting."""
    directory = "/sys/kernel/mm/transparent_hugepage"
    cost = "a VM with GPUs and 128 GiB takes some 20 s more to start, by one thread"
    if transparent.for_private is False:
        yield warning(
            Check.HUGE_PAGES,
            f"guests' memory is in pages of 4 KiB, since transparent_hugepage/enabled is never: {cost}",
            "let QEMU have huge pages, now and at every boot",
            f"echo madvise > {directory}/enabled",
            "boot with transparent_hugepage=madvise",
        )
    elif transparent.for_private:
        yield fine(Check.HUGE_PAGES, f"QEMU gets huge pages: transparent_hugepage/enabled is {transparent.enabled}")
    if transparent.for_shared is False:
        yield note(
            Check.HUGE_PAGES,
            f"memory that guests share with virtiofsd is in pages of 4 KiB, since shmem_enabled is "
            f"{transparent.shmem_enabled}: with devices.filesystems {cost}",
            f"if VMs here have both: echo advise > {directory}/shmem_enabled",
        )
