"""Which models do not survive a reset: every guest's start and end resets its devices.

The file `reset_method` says how the kernel would reset a device. It shows a kernel that avoids a deadly reset
(quirk_no_flr in drivers/pci/quirks.c), whatever its version; the table names the versions known to do so.
"""

from dataclasses import dataclass

from pci.host import Function
from pci.viability import Hindrance


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlyReset:
    """Models by vendor and device ID, separated by blanks, and the kernel's reset methods that they do not survive:
    None for all of them and VFIO's bus reset. `saved_by` is a method that they survive, if the kernel has it. `wrong`
    and `fix` are as in Hindrance.
    """

    ids: str
    methods: frozenset[str] | None
    saved_by: str | None = None
    wrong: str
    fix: str


_FLR = frozenset({"flr"})
_USE_THE_BUS = "reset_method: [] in a rule of the config has VFIO reset its bus instead"

DEADLY = (
    # Blackwell GB202: RTX 5090 and 5090 D, RTX PRO 6000. Config space reads 0xffff0001 for more than an hour
    # (tinygrad/tinygrad#18199, which names Linux' quirk_no_flr for the first three; no release is known to us);
    # "not ready 65535ms after FLR" (NVIDIA acknowledged it: guiahardware.es, 2025; open-gpu-kernel-modules#1080).
    # H100, B200, RTX 4090 are said to be fine, and for an RTX 5070 Ti FLR is what works (#1353 there).
    DeadlyReset(
        ids="10de:2b85 10de:2b87 10de:2b8c 10de:2bb1 10de:2bb4 10de:2bb5",
        methods=_FLR,
        wrong="is a GB202, which may not come back from a function-level reset (flr) until its power is off",
        fix=f"{_USE_THE_BUS}, as a kernel with quirk_no_flr for it does by itself",
    ),
    # amd/MxGPU-Virtualization#25, open, on Linux 7.0: FLR or bus reset, remove and rescan do not help, VFs are fine.
    # 74a1 is the MI300X of pci.ids; the issue gives 740f for it.
    DeadlyReset(
        ids="1002:74a1 1002:75a3",
        methods=None,
        wrong="is an MI300X or MI355X, whose physical function reads as ones after any reset until the node boots",
        fix="give guests its virtual functions, which are fine (AMD's GIM driver makes them)",
    ),
    # gnif/vendor-reset#35: "this only affects Vega10, Vega20, and Navi10"; the IDs are those of pci.ids.
    DeadlyReset(
        ids=(
            "1002:6860 1002:6861 1002:6862 1002:6863 1002:6864 1002:6867 1002:6868 1002:6869 1002:686a 1002:686b "
            "1002:686d 1002:686e 1002:687f 1002:66a0 1002:66a1 1002:66a2 1002:66a3 1002:66a7 1002:66af 1002:7310 "
            "1002:7312 1002:7319 1002:731b 1002:731f"
        ),
        methods=None,
        saved_by="device_specific",
        wrong="is a Vega 10, Vega 20 or Navi 10, which no reset of the kernel's brings back: its second guest gets "
        "nothing until the node boots",
        fix="load the module vendor-reset before vfio has the card, and write device_specific to its reset_method",
    ),
    # Navi 32, 44 and 48: gnif/vendor-reset#97 and #107, mroboff/vm-curator#63 (RX 9070 XT: "stuck in D3").
    DeadlyReset(
        ids="1002:747e 1002:7550 1002:7590",
        methods=None,
        saved_by="device_specific",
        wrong="is a Navi 32, 44 or 48, of which owners report that it does not come back from a reset or from D3cold",
        fix="d3cold_allowed: false in a rule of the config helps against the second, and the first takes a boot",
    ),
    # Linux 5.8 avoids it: 0d14f06cd665, "PCI: Avoid FLR for AMD Matisse HD Audio & USB 3.0".
    DeadlyReset(
        ids="1022:1487 1022:149c",
        methods=_FLR,
        wrong="is audio or USB of a Ryzen (Matisse), which hangs in a function-level reset (flr)",
        fix="boot Linux 5.8 or newer, which resets it otherwise",
    ),
)

_BY_ID = {pci_id: deadly for deadly in DEADLY for pci_id in deadly.ids.split()}


def is_listed(function: Function) -> bool:
    """Whether the function's resets matter. Virtual functions are reset by their physical function's rules."""
    return function.pci_id in _BY_ID and not function.is_virtual


def deadly_reset(function: Function, methods: tuple[str, ...] | None) -> Hindrance | None:
    """Return why the function would not survive a reset by the kernel's `methods` (None: it has none, and VFIO resets
    the bus); None if no reason is known."""
    if not is_listed(function):
        return None
    deadly, has = _BY_ID[function.pci_id], frozenset(methods or ())
    if deadly.saved_by in has or (deadly.methods is not None and not deadly.methods & has):
        return None
    return Hindrance(deadly.wrong, deadly.fix)
