"""Which cards a VM wants beyond a resource's name: its annotations, HAMi's and ours.

HAMi's are read as in HAMi v2.10 (checkType in pkg/device/nvidia/device.go, CheckType and CheckUUID in
pkg/device/devices.go): items between commas, without blanks around them and without empty items; a blank text asks for
nothing. docs/choosing.md has the rules in a table.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, cast, get_args

from launcher.fields.quantity import parse_amount
from launcher.vm.cards.claims import Entry, EntryKind
from pci.driver_version import is_version
from program.errors import Nonsense, UserError


class Word(StrEnum):
    """An annotation that chooses, in the order in which messages name them."""

    USE_TYPE = "nvidia.com/use-gputype"
    AVOID_TYPE = "nvidia.com/nouse-gputype"
    USE_ID = "nvidia.com/use-gpuuuid"
    AVOID_ID = "nvidia.com/nouse-gpuuuid"
    NUMA_BIND = "nvidia.com/numa-bind"
    MEMORY = "gpu-launcher.dev/memory-at-least"
    FIRST = "gpu-launcher.dev/first-available"
    SELECT = "gpu-launcher.dev/select"
    TOGETHER = "gpu-launcher.dev/together"
    DRIVER = "gpu-launcher.dev/nvidia-driver"


Proximity = Literal["node", "root", "switch", "nvlink"]
#: What all cards of a VM may have to share one of.
PLACES = get_args(Proximity)

#: Alternatives of a request (FirstAvailableDeviceRequestMaxSize, kubernetes/api resource/v1/types.go).
_MOST_ALTERNATIVES = 8
#: In bytes (CELSelectorExpressionMaxLength, kubernetes/api resource/v1/types.go).
LONGEST_EXPRESSION = 10 << 10
_LEAST_MEMORY = 1 << 20

_TRUE = frozenset(["1", "t", "T", "TRUE", "true", "True"])  # Go's strconv.ParseBool; all else is no wish

_ID = re.compile(r"(GPU-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Of a card's place (pci.slices.place_uuid): version 5.
_PLACE = re.compile(r"[^-]{8}-[^-]{4}-5[^-]{3}-[89ab]")
#: Of pci.ids' names and NVML's, and of PCI IDs: 10de:2204.
_OF_NO_NAME = re.compile(r"[^A-Za-z0-9 ()+./:-]")
#: As NVML and NVIDIA's labels of nodes call these: A100-SXM4-80GB MIG 1g.10gb, NVIDIA-L4-SHARED.
_PART = re.compile(r"\bMIG\b|\b\d+g\.\d+gb|[- ]SHARED$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a VM wants of each entry of `gpus` and, with `together`, of all devices: `nvlink` of the GPUs alone.

    `use_types` and `use_ids`: one of these; None permits any, an empty tuple none. `avoid_types` and `avoid_ids`: none
    of these. A type is a part of the product's name, in any case, with blanks for hyphens too; an ID is a whole UUID,
    NVML's with `GPU-` before it or without. `numa_bind`: all GPUs on one NUMA node. `memory`: at least so much, as a
    quantity. `first`: types in order; all GPUs are of the first that can be had. `select`: a CEL expression over
    Kubernetes' `device`. `driver`: the version of NVIDIA's driver in the guest, which chooses only with `nvlink`.
    `written`: the annotations that ask for something, as the user wrote them.
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
    written: tuple[tuple[Word, str], ...] = ()

    @property
    def types(self) -> Mapping[Word, tuple[str, ...]]:
        """The names of models, by annotation."""
        return {Word.USE_TYPE: self.use_types or (), Word.AVOID_TYPE: self.avoid_types, Word.FIRST: self.first}

    @property
    def ids(self) -> Mapping[Word, tuple[str, ...]]:
        """The UUIDs, by annotation."""
        return {Word.USE_ID: self.use_ids or (), Word.AVOID_ID: self.avoid_ids}

    @property
    def names(self) -> tuple[Word, ...]:
        return tuple(name for name, _ in self.written)


NO_SELECTION = Selection()


def nvml_id(text: str) -> str:
    """Return a UUID in NVML's form, with `GPU-` before it. Exporters of metrics leave that out."""
    return text if text.startswith("GPU-") else f"GPU-{text}"


def is_of_place(text: str) -> bool:
    """Return whether the UUID has the form of places' UUIDs: no mediated device has it, and hardly an NVML UUID."""
    return _PLACE.match(text) is not None


def read_selection(annotations: Mapping[str, object]) -> Selection:
    """Read those of a VM's annotations that choose cards. Nonsense for a value that is no text, or that the annotation
    does not take."""
    texts: dict[Word, str] = {}
    for name in Word:
        value = annotations.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str) or not "".join(value.split()).isprintable():
            raise Nonsense(f"{name}: found {value!r:.60}", "expected text, in quotes")
        texts[name] = value
    together, select = texts.get(Word.TOGETHER), texts.get(Word.SELECT, "").strip() or None
    if together is not None and together not in PLACES:
        raise Nonsense(f"{Word.TOGETHER}: {together!r:.60}", f"expected {' or '.join(map(repr, PLACES))}")
    if select is not None and len(select.encode()) > LONGEST_EXPRESSION:
        wrong = f"{Word.SELECT}: has {len(select.encode())} bytes"
        raise Nonsense(wrong, f"expected at most {LONGEST_EXPRESSION}, which is all that Kubernetes takes")
    first = _types(Word.FIRST, texts)
    if first is not None and not 0 < len(first) <= _MOST_ALTERNATIVES:
        wrong = f"{Word.FIRST}: has {len(first)} types"
        raise Nonsense(wrong, f"expected 1 to {_MOST_ALTERNATIVES}, as 'H100,A100', which is all that Kubernetes takes")
    driver = texts.get(Word.DRIVER)
    if driver is not None and not is_version(driver):
        raise Nonsense(f"{Word.DRIVER}: {driver!r:.60}", "expected the whole version, like '580.126.09'")
    use_types, avoid_types = _types(Word.USE_TYPE, texts), _types(Word.AVOID_TYPE, texts) or ()
    use_ids, avoid_ids = _ids(Word.USE_ID, texts), _ids(Word.AVOID_ID, texts) or ()
    memory, numa_bind = _memory(texts.get(Word.MEMORY, "").strip()), texts.get(Word.NUMA_BIND) in _TRUE
    asks: dict[Word, object] = {
        Word.USE_TYPE: use_types is not None,
        Word.AVOID_TYPE: avoid_types,
        Word.USE_ID: use_ids is not None,
        Word.AVOID_ID: avoid_ids,
        Word.NUMA_BIND: numa_bind,
        Word.MEMORY: memory,
        Word.FIRST: first,
        Word.SELECT: select,
        Word.TOGETHER: together,
        Word.DRIVER: driver is not None and together == "nvlink",
    }
    return Selection(
        use_types=use_types,
        avoid_types=avoid_types,
        use_ids=use_ids,
        avoid_ids=avoid_ids,
        numa_bind=numa_bind,
        memory=memory,
        first=first or (),
        select=select,
        together=cast("Proximity | None", together),
        driver=driver,
        written=tuple((name, text) for name, text in texts.items() if asks[name]),
    )


def _items(text: str | None) -> tuple[str, ...] | None:
    """Return the items between commas; None if the text is blank."""
    if text is None or not text.strip():
        return None
    return tuple(item for each in text.split(",") if (item := each.strip()))


def _types(name: Word, texts: Mapping[Word, str]) -> tuple[str, ...] | None:
    """Return the names of models. Nonsense for a text that no model's name can contain: it would choose nothing, and
    exclude nothing."""
    items = _items(texts.get(name))
    for item in items or ():
        if _PART.search(item):
            raise Nonsense(f"{name}: {item!r:.60} is a part of a GPU, or a shared one", "a VM has whole GPUs")
        if (wrong := _OF_NO_NAME.search(item)) is not None:
            expected = "expected parts of names between commas, as 'A100-SXM4,H100'"
            raise Nonsense(f"{name}: {item!r:.60} has {wrong[0]!r}, which no model's name has", expected)
    return items


def _ids(name: Word, texts: Mapping[Word, str]) -> tuple[str, ...] | None:
    """Return the UUIDs. Nonsense for a UUID that no card can have."""
    items = _items(texts.get(name))
    for item in items or ():
        if item.startswith("MIG-"):
            raise Nonsense(f"{name}: {item!r:.60} is a part of a GPU", "a VM has whole GPUs: name one")
        if not _ID.fullmatch(item):
            expected = (
                "expected a whole UUID in lower case: GPU-... as of `nvidia-smi -L`, or that of `gpu-launcher fit`"
            )
            raise Nonsense(f"{name}: {item!r:.60} is no card's UUID", expected)
    return items


def _memory(text: str) -> str | None:
    if not text:
        return None
    try:
        amount = parse_amount(text)
    except Nonsense as error:
        raise Nonsense(f"{Word.MEMORY}: {error.wrong}", "expected a quantity, like 40Gi") from error
    if amount.exact < _LEAST_MEMORY:
        like = f"{text}Mi" if text.strip("0").isdecimal() else "40Gi"  # HAMi's memory is a number of MiB
        raise Nonsense(f"{Word.MEMORY}: {text!r} is less than 1Mi", f"expected a quantity, like {like}")
    return amount.text


def refuse_without_dra(selection: Selection, entries: Iterable[Entry]) -> None:
    """UserError if the selection chooses among cards, but a device plugin gives any card of an entry's resource."""
    asks = next((entry for entry in entries if isinstance(entry.wants, str)), None)
    if selection.written and asks is not None:
        raise UserError(
            "metadata.annotations",
            f"{selection.names[0]} chooses among cards, and {asks} asks a device plugin for {asks.wants}, which gives "
            "whichever is free",
            "make the pod with gpu-launcher pod --dra, for nodes whose gpu-plugin serves DRA, or leave it out",
        )


def refuse_unheard(selection: Selection, entries: Iterable[Entry]) -> None:
    """UserError for an annotation that chooses among cards if no entry by deviceName has a claim to carry the
    choice."""
    of_gpus = [entry for entry in entries if isinstance(entry.wants, str) and entry.kind is EntryKind.GPU]
    of_all = [entry for entry in entries if isinstance(entry.wants, str)]
    for name in selection.names:
        is_of_all = name == Word.TOGETHER and selection.together != "nvlink"
        if not (of_all if is_of_all else of_gpus):
            list_ = "gpus and hostDevices" if is_of_all else "gpus"
            raise UserError(
                "metadata.annotations",
                f"{name} is for {list_} by deviceName, and the VM has none",
                "list a card there by deviceName, or write it into the ResourceClaim that the VM names",
            )
