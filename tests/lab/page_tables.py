"""The page tables of a guest with a card, where Linux counts them: a QEMU of the launcher's image on the node, by the
emulated processor's KVM, has a guest that touches all of its memory while VFIO has it pinned.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple

from tests.lab import build
from tests.lab.lab import Lab
from tests.lab.machine import ALONE
from tests.launcher import kernels

#: Linux counts QEMU's own as `pagetables`, KVM's and the IOMMU's together as `sec_pagetables` of its cgroup
#: (Documentation/admin-guide/cgroup-v2.rst), and the IOMMU's also as `nr_iommu_pages` of the node. Each
#: processor adds its part later. A read of memory.stat adds up only from 64 changes a processor on (mm/memcontrol.c),
#: which was 92 KiB short once; a read of cpu.stat always does (kernel/cgroup/rstat.c), and for the node stat_refresh
#: (Documentation/admin-guide/sysctl/vm.rst). Files of Linux 6.12.
_SCRIPT = """
image=/run/page-tables thp=/sys/kernel/mm/transparent_hugepage/enabled
pools=/proc/sys/vm/nr_hugepages cgroup=/sys/fs/cgroup/page-tables files=/dev/shm/page-tables
iommu() {{ echo 1 > /proc/sys/vm/stat_refresh; sed -n 's/^nr_iommu_pages //p' /proc/vmstat; }}
measure() {{
    echo $2 > $thp
    echo $3 > $pools
    before=$(iommu)
    (echo 0 > $cgroup/cgroup.procs; exec chroot $image qemu-system-x86_64 -accel kvm -machine q35,memory-backend=m \\
        -m {mib}M -object memory-backend-$4,id=m,size={mib}M -nodefaults -display none -kernel $files/kernel \\
        -device pcie-root-port,id=p,chassis=1 -device vfio-pci,host={card}.0,bus=p \\
        -serial file:$files/serial -daemonize -pidfile $files/pid) || return
    pid=$(cat $files/pid)
    tries=0
    until grep -q touched $files/serial || [ $((tries += 1)) -gt 600 ]; do sleep 0.1; done
    grep -q touched $files/serial && echo pages $1
    cat $cgroup/cpu.stat > /dev/null
    grep -E '^(sec_)?pagetables ' $cgroup/memory.stat
    echo iommu $(($(iommu) - before))
    kill $pid
    while [ -e /proc/$pid ]; do sleep 0.1; done
}}
mkdir -p $image $cgroup $files
ctr -n k8s.io images mount {image} $image > /dev/null
# Slaves: what is unmounted there stays on the node.
for each in dev proc sys; do mount --rbind --make-rslave /$each $image/$each; done
echo {kernel} | base64 -d > $files/kernel
was=$(sed 's/.*\\[\\(.*\\)\\].*/\\1/' $thp)
measure small never 0 ram
measure transparent always 0 ram
measure huge never $(({mib} / 2)) memfd,hugetlb=on,hugetlbsize=2M
echo 0 > $pools
echo "$was" > $thp
rm -r $files
rmdir $cgroup
umount -R $image
"""
_PAGE = 4096


class Tables(NamedTuple):
    """Bytes of page tables, by who has them."""

    qemu: int
    kvm: int
    iommu: int


def page_tables_of(lab: Lab, mib: int) -> Mapping[str, Tables]:
    """Those of a guest of so much memory in small pages, transparent huge ones, and huge ones of 2 MiB, by these words.
    The first card has to be free."""
    kernel = b64encode(kernels.multiboot(kernels.touches(mib << 20))).decode()
    said = lab.node.sh(_SCRIPT.format(image=build.LAUNCHER, kernel=kernel, mib=mib, card=ALONE), seconds=120)
    found = {}
    for pages, told in re.findall(r"^pages (\w+)\n((?:\w+ \d+\n){3})", said, re.MULTILINE):
        numbers = {name: int(number) for name, number in (line.split() for line in told.splitlines())}
        iommu = numbers["iommu"] * _PAGE
        found[pages] = Tables(numbers["pagetables"], numbers["sec_pagetables"] - iommu, iommu)
    assert found.keys() == {"small", "transparent", "huge"}, said
    return found
