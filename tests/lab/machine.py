"""The node's hardware: a QEMU with an emulated IOMMU, and PCI devices laid out as a GPU server has them.

A "card" is bochs-display with intel-hda beside it on one slot: a display function and its sound, which real drivers
for VFIO take like any GPU. Addresses are what the firmware gives them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lab import build

CARD = ("1234:1111", "8086:2668")  # a display, and the sound beside it
_XHCI = "1b36:000d"
_ODD_BLOCKS = "logical_block_size=2M,physical_block_size=2M"
_TWO_VFS = "sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=10,msix_qsize=20"


@dataclass(frozen=True)
class Machine:
    """A node by that name: whether its VFIO has device nodes, whether it has an IOMMU, and whether the kernel gives the
    cards to vfio at boot, by their IDs; the plugin's init container does otherwise. `moved`: a device has been put in a
    slot before all others, and every card has another address than before. `memory`: MiB, half of them on each NUMA
    node. `dedicates`: node 1 has two processors, which the kubelet gives away as a whole, and there are huge pages.
    `vgpus`: the SR-IOV device has the driver of kernel/nvidia.c, and no virtual functions yet. `board`: there is one
    more card, with a switch of its own. `isolates`: node 0 has four more processors, and node 1 as many, 5 to 8, which
    run only what is pinned to them."""

    name: str
    cdevs: bool = True
    iommu: bool = True
    binds_at_boot: bool = True
    moved: bool = False
    memory: int = 4096
    dedicates: bool = False
    vgpus: bool = False
    board: bool = False
    isolates: bool = False
    disk: Callable[[], Path] = build.disk


#: IOMMUFD and a device node per function, as well as groups.
MODERN = Machine("modern", binds_at_boot=False)
#: Groups alone, as on every Debian.
LEGACY = Machine("legacy", cdevs=False)
#: What must be refused.
BARE = Machine("bare", iommu=False)
#: For KubeVirt, whose pods take more memory than ours.
KUBEVIRT = Machine("kubevirt", binds_at_boot=False, memory=6144, disk=build.kubevirt_disk)
KUBEVIRT_NUMA = replace(KUBEVIRT, dedicates=True)

#: Where the firmware puts the cards; but where the machine was moved, ALONE is NEWCOMER's.
ALONE = "0000:01:00"  # a slot of its own
SHARED = ("0000:04:00", "0000:05:00")  # below one switch without ACS: one IOMMU group
FAR = "0000:41:00"  # on NUMA node 1
NEWCOMER = "1af4:1044"  # a source of random numbers
SCREEN = "0000:00:03.0"  # the firmware's
BOARD = ("0000:0a:00.0", "0000:0b:00.0")  # a GPU, and its audio behind another port of the board's own switch
USB = "0000:07:00"  # a controller
NVME = "0000:06:00"  # whose disk has the filesystem of the node's own; function 0 makes the others


def qemu(machine: Machine, disk: Path, overlay: Path, images: Path, console: str) -> list[str]:
    """The command line: a processor, and memory on two NUMA nodes. What is written over the disk is in the overlay.

    With a second processor kubelet and containerd, which have threads for each, take four times as much of both: they
    look for work of the other's, and wait for each other while the threads that emulate them wait for a core. A single
    one is emulated as such: without what keeps processors apart.
    """
    processors, threads, own, others = ("1", "single", "cpus=0", "")
    if machine.dedicates:
        processors, threads, others = "3", "multi", ",cpus=1-2"
    if machine.isolates:
        processors, own, others = "9", "cpus=0-4", ",cpus=5-8"
    memory = f"memory-backend-ram,size={machine.memory // 2}M"
    return [
        "qemu-system-x86_64",
        *("-machine", "q35", "-accel", f"tcg,thread={threads}"),
        *("-cpu", "max,la57=off,smap=off,smep=off,pku=off,erms=off,fsrm=off"),
        *("-smp", processors, "-m", str(machine.memory)),
        *("-nodefaults", "-no-reboot", "-display", "none"),
        *("-serial", f"file:{console}"),
        *("-object", f"{memory},id=m0", "-numa", f"node,nodeid=0,memdev=m0,{own}"),
        *("-object", f"{memory},id=m1", "-numa", f"node,nodeid=1,memdev=m1{others}"),
        *(("-device", "intel-iommu,intremap=on,caching-mode=on") if machine.iommu else ()),
        *("-kernel", str(build.kernel() / "vmlinuz"), "-initrd", str(build.initrd() / "initrd")),
        *("-append", _kernel_arguments(machine)),
        *("-drive", f"file={overlay},format=qcow2,if=none,id=d0,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=d0,bus=pcie.0,addr=0x10"),
        *("-drive", f"file={images},format=raw,if=none,id=d1,readonly=on"),
        *("-device", "virtio-blk-pci,drive=d1,bus=pcie.0,addr=0x11"),
        *("-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no"),
        *("-device", "virtio-net-pci,netdev=n0,bus=pcie.0,addr=0x12,romfile="),
        *("-device", "virtio-rng-pci,bus=pcie.0,addr=0x13"),
        *(_newcomer() if machine.moved else ()),
        # A card on a port of its own.
        *("-device", "pcie-root-port,id=rp1,bus=pcie.0,chassis=1,slot=1,addr=0x4"),
        *_card("rp1"),
        # Two below a switch, whose ports are functions of one slot without ACS: nothing keeps the two cards apart.
        *("-device", "pcie-root-port,id=rp2,bus=pcie.0,chassis=2,slot=2,addr=0x5"),
        *("-device", "x3130-upstream,id=up,bus=rp2"),
        *("-device", "xio3130-downstream,id=down1,bus=up,addr=0x0.0,multifunction=on,chassis=3,slot=3"),
        *("-device", "xio3130-downstream,id=down2,bus=up,addr=0x0.1,chassis=4,slot=4"),
        *_card("down1"),
        *_card("down2"),
        # The firmware's screen, which is nobody's to give away.
        *("-device", "cirrus-vga,bus=pcie.0,addr=0x3"),
        # An SR-IOV device with a disk, and one that is no GPU.
        *("-device", "pcie-root-port,id=rp3,bus=pcie.0,chassis=5,slot=5,addr=0x6"),
        *("-device", "nvme-subsys,id=ss0"),
        *("-device", f"nvme,serial=lab,subsys=ss0,bus=rp3,{_TWO_VFS}"),
        *("-drive", f"file={disk},format=raw,if=none,id=d2,snapshot=on", "-device", "nvme-ns,drive=d2"),
        *("-device", "pcie-root-port,id=rp4,bus=pcie.0,chassis=6,slot=6,addr=0x7"),
        *("-device", "qemu-xhci,bus=rp4"),
        # A card on the other NUMA node.
        *("-device", "pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=64,numa_node=1,addr=0x8"),
        *("-device", "pcie-root-port,id=rp5,bus=pxb1,chassis=7,slot=7"),
        *_card("rp5"),
        *(_board() if machine.board else ()),
    ]  # fmt: skip


def _kernel_arguments(machine: Machine) -> str:
    """Ticks come periodically: a timer that the kernel sets for each is lost now and then where processors are emulated
    by threads that have to wait for a core, and that processor then stands still. Where one thread emulates them all,
    and most of them are idle, an idle one has none: the others would wait for it."""
    return " ".join([
        "console=ttyS0 quiet panic=-1 mitigations=off norandmaps",
        *(["isolcpus=1-8"] if machine.isolates else ["highres=off nohz=off"]),
        "root=/dev/vda rw init=/lab/init cgroup_no_v1=all",
        *(["intel_iommu=on", "iommu=nopt"] if machine.iommu else []),
        *([f"vfio-pci.ids={','.join((*CARD, _XHCI))}"] if machine.binds_at_boot else []),
        *(["lab.cdevs"] if machine.cdevs else []),
        *(["lab.dedicates", "hugepages=400"] if machine.dedicates else []),
        *(["lab.vgpus"] if machine.vgpus else []),
        f"lab.node={machine.name}",
    ])  # fmt: skip


def _newcomer() -> tuple[str, ...]:
    return (
        *("-device", "pcie-root-port,id=rp0,bus=pcie.0,chassis=9,slot=9,addr=0x2"),
        *("-device", "virtio-rng-pci,bus=rp0"),
    )


def _card(port: str) -> tuple[str, ...]:
    return (
        *("-device", f"bochs-display,bus={port},addr=0x0.0,multifunction=on"),
        *("-device", f"intel-hda,bus={port},addr=0x0.1"),
    )


def _board() -> tuple[str, ...]:
    """A card as Intel's Arc: below a switch of its own, whose ports have ACS, are a display and, of the same vendor, a
    function of sound's class. QEMU's downstream ports have no ACS, and its root ports do. The sound is a disk with
    blocks of a size that Linux refuses, so that it is nobody's disk."""
    return (
        *("-device", "pcie-root-port,id=rp6,bus=pcie.0,chassis=10,slot=10,addr=0x9"),
        *("-device", "x3130-upstream,id=up2,bus=rp6"),
        *("-device", "pcie-root-port,id=down3,bus=up2,chassis=11,slot=11,addr=0x0"),
        *("-device", "pcie-root-port,id=down4,bus=up2,chassis=12,slot=12,addr=0x1"),
        *("-device", "virtio-gpu-pci,bus=down3,iommu_platform=on"),
        *("-blockdev", "null-co,node-name=d3,size=4194304"),
        *("-device", f"virtio-blk-pci,drive=d3,bus=down4,class=0x0403,iommu_platform=on,{_ODD_BLOCKS}"),
    )
