"""How much memory a GPU has, as far as its PCI ID, its model's name and its BARs tell.

Only the vendor's driver can ask a GPU. The largest BAR is a window into its memory:

- A window onto all of the memory (data-centre cards; others with a resizable BAR) has the size of the next power of
  two, 128 GiB for 80 GB. So the memory is more than half of the window.
- A smaller window (256 MiB on most GeForce cards, or what the firmware has resized it to) has the same bound.
"""

import re

from pci.host import Function

#: By GiB, as sold (the vendors' data sheets): cards whose name in pci.ids has no size, or that of the CPU's memory.
#: Without the models of several sizes.
_SOLD = {
    8: "10de:1bb3",
    10: "10de:2206",
    11: "10de:1e04 10de:1e07",
    12: "10de:2208 10de:2782 10de:2786",
    16: "10de:1eb8 10de:24b0 10de:25b6",
    20: "10de:2232",
    24: "10de:1b30 10de:1b38 10de:1e02 10de:20b7 10de:20b9 10de:2203 10de:2204 10de:2231 10de:2233 10de:2236 10de:2237 "
    "10de:2684 10de:2685 10de:26b8 10de:27b8",
    32: "10de:2b85 1002:738c 1002:73a3",
    48: "10de:2230 10de:2235 10de:26b1 10de:26b5 10de:26b9",
    64: "1002:7408 1002:740c 1002:740f",
    80: "10de:20b8 10de:2313 10de:2322 10de:2324 10de:2330 10de:2331",
    94: "10de:2321",
    96: "10de:2329 10de:2342 10de:2345 10de:2bb1 10de:2bb4 10de:2bb5",
    141: "10de:2335 10de:233b",
    144: "10de:2348",
    180: "10de:2901",
    192: "1002:74a1",
    256: "1002:74a5",
}
_BY_ID = {pci_id: gib for gib, ids in _SOLD.items() for pci_id in ids.split()}
_IN_NAME = re.compile(r"\b([1-9]\d{0,2}) ?GB\b")
_GIBIBYTE = 1 << 30


def memory_of(function: Function, model: str) -> int | None:
    """Return a lower bound of a GPU's memory in GiB; `model` is its name in pci.ids. None if unknown, as for a virtual
    function, whose share is not known."""
    if function.is_virtual:
        return None
    sizes = [] if "/" in model.partition("[")[2] else _IN_NAME.findall(model)
    sold = _BY_ID.get(function.pci_id) or (int(sizes[0]) if len(sizes) == 1 else 0)
    return max(sold, function.memory_bar // 2 // _GIBIBYTE) or None
