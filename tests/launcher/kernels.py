"""Kernels of one thought: to tell QEMU's panic device that the guest has got so far. A firmware loads each its way.

With `<on_crash>preserve` the guest then stands still, with everything as the firmware has left it.
"""

import struct

# mov dx, 0x505; mov al, 1; out dx, al; hlt; and again. The same in 32 and in 64 bits.
_PANIC = bytes.fromhex("66ba0505 b001 ee f4 ebfd")


def multiboot() -> bytes:
    """For SeaBIOS, where QEMU's option ROM loads it.

    https://www.gnu.org/software/grub/manual/multiboot/multiboot.html#Header-layout: checksum, then where it goes.
    """
    magic, flags, at = 0x1BADB002, 1 << 16, 0x100000
    return struct.pack("<8I", magic, flags, -(magic + flags) & 0xFFFFFFFF, at, at, 0, 0, at + 32) + _PANIC


def efi_application() -> bytes:
    """For OVMF: a PE32+ image of one section, at home at every address since its code names none.

    https://learn.microsoft.com/en-us/windows/win32/debug/pe-format
    """
    page, headers = 0x1000, 16
    dos = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)  # where the next header is
    amd64, executable = 0x8664, 0x22
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", amd64, 1, 0, 0, 0, 112 + 8 * headers, executable)
    # Its code's size and those of its data; its entry point, and the code's address.
    optional = struct.pack("<HxxIIIII", 0x20B, page, 0, 0, page, page)
    # Base, alignments, versions; the image's size and its headers'; subsystem 10: an EFI application; stack and heap.
    optional += struct.pack("<QII12xIIIIHH32xII", 0, page, page, 0, 2 * page, page, 0, 10, 0, 0, headers)
    optional += bytes(8 * headers)
    section = struct.pack("<8sIIII12xI", b".text", page, page, page, page, 0x60000020)  # code; readable, executable
    return (dos + coff + optional + section).ljust(page, b"\0") + _PANIC.ljust(page, b"\x90")
