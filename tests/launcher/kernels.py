"""Kernels of one thought each, which a firmware loads in its way.

PANICS tells QEMU's panic device that the guest has got so far; with `<on_crash>preserve` the guest then stands still,
with everything as the firmware has left it. The others end it, by the registers of the q35's chipset where SeaBIOS puts
them: Intel's "I/O Controller Hub 9 Family Datasheet", 13.7 (RST_CNT) and 13.8.3 (PM1_STS, PM1_EN, PM1_CNT). greets()
is somebody at the serial port.
"""

import struct

_HALTS = bytes.fromhex("f4 ebfd")  # hlt; and again
_AT = 0x100020  # where a kernel for SeaBIOS begins
# mov dx, 0x505; mov al, 1; out dx, al. The same in 32 and in 64 bits.
PANICS = bytes.fromhex("66ba0505 b001 ee") + _HALTS
# mov dx, 0xcf9; mov al, 6; out dx, al
REBOOTS = bytes.fromhex("66baf90c b006 ee") + _HALTS
# mov dx, 0x604; mov ax, 0x2000; out dx, ax
POWERS_OFF = bytes.fromhex("66ba0406 66b80020 66ef") + _HALTS
# A guest that looks for something again and again would have a processor of the tester's for itself: between two looks
# it halts, until the timer that SeaBIOS has set interrupts it, 18 times a second. It comes first in a kernel.
# jmp over the handler, at 0x100022: push eax; mov al, 0x20; out 0x20, al; pop eax; iret. Then mov esp, 0x210000; the
# table of interrupts, at 0x201000, where SeaBIOS's controller has the timer as 8: mov word [0x201040], 0x22;
# mov [0x201042], cs; mov dword [0x201044], 0x108e00; mov word [0x201100], 0x47; mov dword [0x201102], 0x201000;
# lidt [0x201100]. No other interrupt: mov al, 0xfe; out 0x21, al; mov al, 0xff; out 0xa1, al; sti.
_TICKS = bytes.fromhex(
    "eb07 50b020e62058cf bc00002100"
    "66c705401020002200 8c0d42102000 c70544102000008e1000 66c705001120004700 c7050211200000102000"
    "0f011d00112000 b0fee621b0ffe6a1 fb"
)
# mov dx, 0x602; mov ax, 0x100; out dx, ax; mov dx, 0x600; in ax, dx; test ah, 1; jnz over: hlt; jmp the last four
OBEYS = _TICKS + bytes.fromhex("66ba0206 66b80001 66ef 66ba0006 66ed f6c401 7503 f4 ebf2") + POWERS_OFF
#: Neither the power button nor anything else.
IGNORES = _HALTS

# mov esi, what follows; then for each byte up to a zero: lodsb; test al, al; jz; call write.
# For ever: mov dx, 0x3fd; in al, dx; test al, 1; jnz over: hlt; and again. A byte is there: mov dx, 0x3f8; in al, dx;
# call write. write: mov ah, al; mov dx, 0x3fd; in al, dx; test al, 0x20; jz; it may go: mov al, ah; mov dx, 0x3f8;
# out dx, al; ret.
_REPEATS = bytes.fromhex(
    "ac84c07407e81a000000ebf466bafd03eca8017503f4ebf4 66baf803ece802000000ebe8 88c466bafd03eca82074fb88e066baf803eec3"
)


def greets(words: bytes) -> bytes:
    """Says these on the first serial port, and repeats every byte that comes there."""
    text = _AT + len(_TICKS) + 5 + len(_REPEATS)
    return _TICKS + b"\xbe" + struct.pack("<I", text) + _REPEATS + words + b"\0"


#: For each byte that comes to the first serial port, adds one to a number in memory, and writes that to the port.
# Until a byte is there: mov dx, 0x3fd; in al, dx; test al, 1; jnz over: hlt; and again. Then: mov dx, 0x3f8;
# in al, dx; inc byte [0x200000]; mov al, [0x200000]; out dx, al; and again.
COUNTS = _TICKS + bytes.fromhex("66bafd03 ec a801 7503 f4 ebf4 66baf803 ec fe0500002000 a000002000 ee ebe1")


def touches(end: int) -> bytes:
    """Writes to each page from 2 MiB to `end`, below 2 GiB, then says `touched` on the first serial port."""
    # mov edi, 0x200000; mov [edi], edi; add edi, 0x1000; cmp edi, end; jb the last three
    writes = bytes.fromhex("bf00002000 893f 81c700100000 81ff") + struct.pack("<I", end) + bytes.fromhex("72f0")
    # mov dx, 0x3f8; mov al, each; out dx, al
    return writes + b"".join(bytes.fromhex("66baf803b0") + bytes([each, 0xEE]) for each in b"touched\n") + _HALTS


def multiboot(code: bytes = PANICS) -> bytes:
    """For SeaBIOS, where QEMU's option ROM loads it.

    https://www.gnu.org/software/grub/manual/multiboot/multiboot.html#Header-layout: checksum, then where it goes.
    """
    magic, flags, at = 0x1BADB002, 1 << 16, _AT - 32
    return struct.pack("<8I", magic, flags, -(magic + flags) & 0xFFFFFFFF, at, at, 0, 0, _AT) + code


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
    return (dos + coff + optional + section).ljust(page, b"\0") + PANICS.ljust(page, b"\x90")


def boot_sector(words: bytes, *, obeys: bool = True) -> bytes:
    """For SeaBIOS, from a disk: says these on the first serial port, and again for each byte that comes there. It
    `obeys` the power button, or not.

    In 16 bits, at 0x7c00: ax = ds = 0; enable the button; say: from si, each byte up to a zero, as soon as the port is
    free; poll: the button: power off; no byte: sti; hlt, until SeaBIOS's timer interrupts it; poll; read the byte: say.
    """
    button = "f6c401 7512" if obeys else "90" * 5
    code = bytes.fromhex(
        "31c0 8ed8 ba0206 b80001 ef"
        "be4a7c ac 84c0 7412 88c4 bafd03 ec a820 74fb 88e0 baf803 ee ebe9"
        f"ba0006 ed {button} bafd03 ec a801 7504 fb f4 ebeb baf803 ec ebcb"
        "ba0406 b80020 ef f4 ebfd"
    )
    return (code + words + b"\0").ljust(510, b"\0") + b"\x55\xaa"
