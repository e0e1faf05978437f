"""Which cards a VM wants beyond a resource's name: its annotations, HAMi's and ours.

HAMi's are read as in HAMi v2.10 (checkType in pkg/device/nvidia/device.go, CheckType and CheckUUID in
pkg/device/devices.go): items between commas, without blanks around them and without empty items; a blank text asks for
nothing. docs/choosing.md has the rules in a table.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from launcher.claims import Entry, EntryKind
from launcher.quantity import parse_amount
from pci.driver_version import is_version
from program.errors import Nonsense, UserError

USE_TYPE, AVOID_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_ID, AVOID_ID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
SELECT, TOGETHER = "gpu-launcher.dev/select", "gpu-launcher.dev/together"
MEMORY, FIRST = "gpu-launcher.dev/memory-at-least", "gpu-launcher.dev/first-available"
DRIVER = "gpu-launcher.dev/nvidia-driver"
#: What all cards of a VM may have to share one of.
PLACES = ("node", "root", "switch", "nvlink")

#: All annotations that choose, in the order in which messages name them.
NAMES = (USE_TYPE, AVOID_TYPE, USE_ID, AVOID_ID, NUMA_BIND, MEMORY, FIRST, SELECT, TOGETHER, DRIVER)
#: Alternatives of a request (FirstAvailableDeviceRequestMaxSize, kubernetes/api resource/v1/types.go).
_MOST_ALTERNATIVES = 8
#: In bytes (CELSelectorExpressionMaxLength, kubernetes/api resource/v1/types.go).
LONGEST_EXPRESSION = 10 << 10

_TRUE = frozenset(["1", "t", "T", "TRUE", "true", "True"])  # Go's strconv.ParseBool; all else is no wish

_ID = re.compile(r"(GPU-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: As NVIDIA's labels of nodes call these: NVIDIA-A100-SXM4-80GB-MIG-1g.10gb, NVIDIA-L4-SHARED.
_PART = re.compile(r"-MIG-\d|-SHARED$", re.IGNORECASE)

Proximity = Literal["node", "root", "switch", "nvlink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a VM wants of each entry of `gpus` and, with `together`, of all devices: `nvlink` of the GPUs alone.

    `use_types` and `use_ids`: one of these; None permits any, an empty tuple none. `avoid_types` and `avoid_ids`: none
    of these. A type is a part of the product's name, in any case, with blanks for hyphens too; an ID is a whole UUID,
    with `GPU-` before it if it is NVML's. `numa_bind`: all GPUs on one NUMA node. `memory`: at least so much, as a
    quantity. `first`: types in order; all GPUs are of the first that can be had. `select`: a CEL expression over
    Kubernetes' `device`. `driver`: the version of NVIDIA's driver in the guest, which chooses only with `nvlink`.
    `given`: the annotations that ask for something, as they were written.
    """

    use_types: tuple[str, ...] | None = None
    avoid_types: tuple[str, ...] = ()
    use_ids: tuple[str, ...] | None = None
    avoid_ids: tuple[str, ...] = ()
    numa_bind: bool = False
    memory: str | None = None
    first: tuple[str, ...] = ()
    select: str | None = None
    together: Proximity | None = None
    driver: str | None = None
    given: tuple[tuple[str, str], ...] = ()

    @property
    def nvml_ids(self) -> Mapping[str, tuple[str, ...]]:
        """NVML's UUIDs among the IDs, by annotation."""
        by_name = {USE_ID: self.use_ids or (), AVOID_ID: self.avoid_ids}
        return {name: its for name, ids in by_name.items() if (its := tuple(each for each in ids if is_nvml_id(each)))}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.given)


NO_SELECTION = Selection()


def is_nvml_id(text: str) -> bool:
    """Whether a UUID is NVML's: ours, and those of mediated devices, have no such beginning."""
    return text.startswith("GPU-")


def read_selection(annotations: Mapping[str, object]) -> Selection:
    """Read what these annotations of a VM ask for, but for annotations that do not choose. Nonsense for a value that is
    no text, or that the annotation does not have."""
    texts: dict[str, str] = {}
    for name in NAMES:
        value = annotations.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str) or not "".join(value.split()).isprintable():
            raise Nonsense(f"{name}: found {value!r:.60}", "expected text, in quotes")
        texts[name] = value
    together, select = texts.get(TOGETHER), texts.get(SELECT, "").strip() or None
    if together is not None and together not in PLACES:
        raise Nonsense(f"{TOGETHER}: {together!r:.60}", f"expected {' or '.join(map(repr, PLACES))}")
    if select is not None and len(select.encode()) > LONGEST_EXPRESSION:
        wrong = f"{SELECT}: has {len(select.encode())} bytes"
        raise Nonsense(wrong, f"expected at most {LONGEST_EXPRESSION}, which is all that Kubernetes takes")
    use_types, use_ids = _items(texts.get(USE_TYPE)), _items(texts.get(USE_ID))
    memory, first = _memory(texts.get(MEMORY)), _first(texts.get(FIRST))
    avoid_types, avoid_ids = _items(texts.get(AVOID_TYPE)) or (), _items(texts.get(AVOID_ID)) or ()
    _check_items(texts)
    driver = texts.get(DRIVER)
    if driver is not None and not is_version(driver):
        raise Nonsense(f"{DRIVER}: {driver!r:.60}", "expected the whole version, like '580.126.09'")
    numa_bind = texts.get(NUMA_BIND) in _TRUE
    asks = {
        USE_TYPE: use_types is not None,
        AVOID_TYPE: avoid_types,
        USE_ID: use_ids is not None,
        AVOID_ID: avoid_ids,
        NUMA_BIND: numa_bind,
        MEMORY: memory,
        FIRST: first,
        SELECT: select,
        TOGETHER: together,
        DRIVER: driver is not None and together == "nvlink",
    }
    return Selection(
        use_types=use_types,
        avoid_types=avoid_types,
        use_ids=use_ids,
        avoid_ids=avoid_ids,
        numa_bind=numa_bind,
        memory=memory,
        first=first,
        select=select,
        together=cast("Proximity | None", together),
        driver=driver,
        given=tuple((name, texts[name]) for name in NAMES if asks[name]),
    )


def _items(text: str | None) -> tuple[str, ...] | None:
    """Return the items between commas; None if the text is blank."""
    if text is None or not text.strip():
        return None
    return tuple(item for each in text.split(",") if (item := each.strip()))


def _memory(text: str | None) -> str | None:
    if text is None or not text.strip():
        return None
    try:
        return parse_amount(text.strip()).text
    except Nonsense as error:
        raise Nonsense(f"{MEMORY}: {error.wrong}", "expected a quantity, like 40Gi") from error


def _first(text: str | None) -> tuple[str, ...]:
    items = _items(text)
    if items is not None and not 0 < len(items) <= _MOST_ALTERNATIVES:
        wrong = f"{FIRST}: has {len(items)} types"
        raise Nonsense(wrong, f"expected 1 to {_MOST_ALTERNATIVES}, as 'H100,A100', which is all that Kubernetes takes")
    return items or ()


def _check_items(texts: Mapping[str, str]) -> None:
    """Refuse items that no card can be called by: they would match nothing, and exclude nothing."""
    for name in (USE_TYPE, AVOID_TYPE, FIRST):
        for item in _items(texts.get(name)) or ():
            if _PART.search(item):
                raise Nonsense(f"{name}: {item!r:.60} is a part of a GPU, or a shared one", "a VM has whole GPUs")
    for name in (USE_ID, AVOID_ID):
        for item in _items(texts.get(name)) or ():
            if item.startswith("MIG-"):
                raise Nonsense(f"{name}: {item!r:.60} is a part of a GPU", "a VM has whole GPUs: name one")
            if not _ID.fullmatch(item):
                expected = (
                    "expected a whole UUID in lower case: GPU-... as of `nvidia-smi -L`, or that of `gpu-launcher fit`"
                )
                raise Nonsense(f"{name}: {item!r:.60} is no card's UUID", expected)


def refuse_without_dra(selection: Selection, entries: Iterable[Entry]) -> None:
    """UserError if the selection chooses among cards, but a device plugin gives any card of an entry's resource."""
    asks = next((entry for entry in entries if isinstance(entry.wants, str)), None)
    if selection.given and asks is not None:
        raise UserError(
            "metadata.annotations",
            f"{selection.names[0]} chooses among cards, and {asks} asks a device plugin for {asks.wants}, which gives "
            "whichever is free",
            "make the pod with gpu-launcher pod --dra, for nodes whose gpu-plugin serves DRA, or leave it out",
        )


def refuse_unheard(selection: Selection, entries: Iterable[Entry]) -> None:
    """UserError for an annotation that chooses among cards if no entry by deviceName has a claim that could say so."""
    of_gpus = [entry for entry in entries if isinstance(entry.wants, str) and entry.kind is EntryKind.GPU]
    of_all = [entry for entry in entries if isinstance(entry.wants, str)]
    for name in selection.names:
        is_of_all = name == TOGETHER and selection.together != "nvlink"
        if not (of_all if is_of_all else of_gpus):
            list_ = "gpus and hostDevices" if is_of_all else "gpus"
            raise UserError(
                "metadata.annotations",
                f"{name} is for {list_} by deviceName, and the VM has none",
                "list a card there by deviceName, or write it into the ResourceClaim that the VM names",
            )
