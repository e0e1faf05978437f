"""metadata.annotations: what KubeVirt's manifests have no field for.

Ours begin with gpu-launcher.dev/; one that is not known is refused, since it is misspelt or of a newer gpu-launcher.
Of KubeVirt's, those that change its domain are honoured or refused; of HAMi's, those that choose a card are read
(launcher.vm.cards.annotations); everybody else's are left alone.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from launcher.vm.cards.annotations import NO_SELECTION, PLACES, Selection, Word, read_selection
from launcher.vm.guest import NEAREST, NO_MMAP, P2P, ROM_OF, SEATS, SEATS_OF, TOPOLOGY, TOPOLOGY_POLICY, VFIO, Topology
from program.errors import Nonsense
from program.problem import excerpt
from program.spelling import meant

OURS = "gpu-launcher.dev/"
_COMPANIONS = f"{OURS}companions"
_LAYOUT = f"{OURS}layout"
_ALLOW_EMULATION = f"{OURS}allow-emulation"
_ASK_GUEST = f"{OURS}ask-guest"
SUSPEND_TO = f"{OURS}suspend-to"
ON_DRAIN = f"{OURS}on-drain"
_MEMFD = "kubevirt.io/memfd"
_NO_FREE_PAGES = "kubevirt.io/free-page-reporting-disabled"
_IGNITION = "kubevirt.io/ignitiondata"
_NO_HOLE = "kubevirt.io/disablePCIHole64"
_EVEN_EMULATOR = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"  # whatever its value

#: Of those with a few values each, the values.
KNOWN: Mapping[str, tuple[str, ...]] = {
    _COMPANIONS: ("card", "none"),
    TOPOLOGY: get_args(Topology),
    TOPOLOGY_POLICY: ("prefer", "strict"),
    _LAYOUT: ("1",),
    _ALLOW_EMULATION: ("true", "false"),
    NEAREST: ("nearest",),
    P2P: ("clique",),
    NO_MMAP: ("true", "false"),
    VFIO: ("groups", "iommufd"),
    _ASK_GUEST: ("nvidia-smi",),
    ON_DRAIN: ("suspend",),
    Word.TOGETHER: PLACES,
    _MEMFD: ("true", "false"),
    _NO_FREE_PAGES: ("true", "false"),
}

#: Those that read_selection reads, and that have not a few values each.
_SELECTING = tuple(word for word in Word if word.startswith(OURS) and word is not Word.TOGETHER)
#: All that are read, but for HAMi's.
NAMES = (*KNOWN, SEATS_OF, ROM_OF, SUSPEND_TO, *_SELECTING)
_CLAIM = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LONGEST_PATH = 1024

_HOOKS = "hooks.kubevirt.io/hookSidecars"
#: Why, and the fix.
_REFUSED: Mapping[str, tuple[str, str]] = {
    _HOOKS: (
        "hook sidecars are not asked",
        "leave it out, and see the XML with render; gpu-launcher's own (image gpu-launcher, args ['hook']) may stay",
    ),
}
_REFUSED_IF_TRUE: Mapping[str, tuple[str, str]] = {
    "kubevirt.io/placePCIDevicesOnRootComplex": ("every card has a root port of its own", "leave it out"),
}
#: By which the kubelet, CRI-O, a runtime or an NRI plugin gives a container another profile, devices, mounts or limits
#: than its pod's spec says, where the node allows it: domains, also with others before them, and what names begin with.
#: SECURITY.md has the list.
_DOMAINS_OF_RUNTIMES = (
    *("security.alpha.kubernetes.io", "security.beta.kubernetes.io", "cdi.k8s.io", "crio.io", "cri-o.io"),
    *("noderesource.dev", "nri.io", "nri.containerd.io", "resources.beta.kubernetes.io", "workload.openshift.io"),
)
_OF_RUNTIMES = (
    *("io.kubernetes.cri-o.", "io.kubernetes.cri.", "io.containers.", "io.containerd.", "io.crio"),
    *("org.systemd.property.", "org.criu.config", "run.oci.", "io.katacontainers.", "dev.gvisor."),
    "com.github.containers.virtcontainers.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ROMFile:
    """A file of a volume, by its path below that."""

    volume: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """What the annotations of a VM ask for.

    `companions`: whether a claimed function brings the rest of its card. `topology`: whether cards are in cells of
    their NUMA node (numa), and behind the host's switches too (mirror); with `is_strict`, a card that cannot be is
    refused. `seats` and `roms` are by the name of an entry; None is no ROM. `allow_emulation`: QEMU's own CPU if there
    is no KVM. `in_cliques`: NVIDIA's GPUs are told which of them may write to each other's memory. `maps_bars`: the
    guest reaches BARs without QEMU. `by_iommufd`: VFIO gives PCI functions by IOMMUFD, and not by their groups.
    `nearest_machine`: the nearest machine that QEMU has, if it has not this one.
    `memfd`: whether hugepages may come from memfd. `free_page_reporting`: whether the balloon may report the guest's
    free pages. `has_hole`: whether there are guest addresses above 4 GiB for BARs. `ignition`: a config of Ignition's.
    `asks_nvidia_smi`: whether the guest's agent may be asked to run it. `even_emulator`: whether isolateEmulatorThread
    takes a second CPU if that makes their number even. `suspend_to`: the claim for the memory of the suspended guest,
    "" for none. `suspends_on_drain`: whether it is suspended when its pod is deleted. `selection`: the wanted cards,
    also in HAMi's words. `written`: all annotations as the user wrote them, for the pod.
    """

    companions: Literal["card", "none"] = "card"
    topology: Topology = "none"
    is_strict: bool = False
    seats: Mapping[str, int] = field(default_factory=dict)
    roms: Mapping[str, ROMFile | None] = field(default_factory=dict)
    allow_emulation: bool = False
    nearest_machine: bool = False
    in_cliques: bool = False
    maps_bars: bool = True
    by_iommufd: bool = False
    asks_nvidia_smi: bool = False
    memfd: bool = True
    free_page_reporting: bool = True
    has_hole: bool = True
    ignition: str = ""
    even_emulator: bool = False
    suspend_to: str = ""
    suspends_on_drain: bool = False
    selection: Selection = NO_SELECTION
    written: Mapping[str, Any] = field(default_factory=dict)


def refuse_unconverted(value: Mapping[str, Any]) -> None:
    """Raise Nonsense for an annotation that asks KubeVirt's launcher for what this one does not do, and for one that
    makes the pod do more than its spec says."""
    for name, text in value.items():
        if isinstance(name, str) and _is_of_a_runtime(name):
            wrong = f"{excerpt(name)} changes what the pod's container may do, behind the pod's own fields"
            raise Nonsense(wrong, "leave it out: the pod has what the VM needs")
        if name == _HOOKS and _are_ours(text):
            continue
        if name == _IGNITION and text:
            _refuse_no_config(text)
        if text and (why := _REFUSED.get(name) or (is_true(text) and _REFUSED_IF_TRUE.get(name))):
            raise Nonsense(f"{name} is not converted: {why[0]}", why[1])


def _is_of_a_runtime(name: str) -> bool:
    domain = f".{name.partition('/')[0]}"
    return name.startswith(_OF_RUNTIMES) or any(domain.endswith(f".{each}") for each in _DOMAINS_OF_RUNTIMES)


def is_true(text: Any) -> bool:
    """Return whether KubeVirt takes an annotation's value for true: in any case of letters, and no other text."""
    return isinstance(text, str) and text.lower() == "true"


def _are_ours(text: Any) -> bool:
    """Return whether the annotation asks for no other sidecar than `gpu-launcher hook`. A VM that moves here from
    KubeVirt keeps it, and the domain is the same without the sidecar."""
    try:
        sidecars = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return False
    return isinstance(sidecars, list) and all(map(_is_our_hook, sidecars))


def _is_our_hook(sidecar: Any) -> bool:
    """Return whether a sidecar's image has that name, in any registry and version, and runs nothing else."""
    if not isinstance(sidecar, dict) or sidecar.keys() - {"image", "imagePullPolicy", "args"}:
        return False
    image, args = sidecar.get("image"), sidecar.get("args")
    if not isinstance(image, str) or not isinstance(args, list):
        return False
    return re.split("[:@]", image.rpartition("/")[2])[0] == "gpu-launcher" and args[:1] == ["hook"]


def read_annotations(value: Any) -> Annotations:
    """Return what the annotations ask for; Nonsense for an unknown annotation or value of gpu-launcher's own."""
    if not isinstance(value, dict):
        raise Nonsense(f"found {excerpt(value)}", "expected a mapping")
    values: dict[str, Any] = {}
    seats: Mapping[str, int] = {}
    roms: Mapping[str, ROMFile | None] = {}
    for name, text in value.items():
        if text is None or text == "":
            continue
        if isinstance(name, str) and name.startswith(OURS) and name not in NAMES:
            ours = [known.removeprefix(OURS) for known in NAMES if known.startswith(OURS)]
            near = meant(name.removeprefix(OURS), ours)
            raise Nonsense(
                f"{excerpt(name)} is not an annotation that gpu-launcher knows",
                f"did you mean {OURS}{near}?" if near else f"known: {', '.join(OURS + known for known in ours)}",
            )
        if name in KNOWN:
            if text not in KNOWN[name]:
                raise Nonsense(f"{name}: {excerpt(text)}", f"expected {' or '.join(map(repr, KNOWN[name]))}")
            values[name] = text
        elif name == SEATS_OF:
            seats = _read_seats(text)
        elif name == ROM_OF:
            roms = _read_roms(text)
        elif name == SUSPEND_TO and not (isinstance(text, str) and _CLAIM.fullmatch(text)):
            raise Nonsense(f"{name}: {excerpt(text)}", "expected the name of a PersistentVolumeClaim")
    topology = values.get(TOPOLOGY, "none")
    if topology == "mirror" and seats:
        raise Nonsense(f"{SEATS_OF}: with {TOPOLOGY} 'mirror' the host's tree says where a card is", "leave out one")
    if topology == "none" and TOPOLOGY_POLICY in values:
        raise Nonsense(f"{TOPOLOGY_POLICY} is of no use without {TOPOLOGY}", "add 'numa' or 'mirror', or leave it out")
    if ON_DRAIN in values and not value.get(SUSPEND_TO):
        raise Nonsense(f"{ON_DRAIN} is of no use without {SUSPEND_TO}", "name a claim there, or leave it out")
    return Annotations(
        companions=values.get(_COMPANIONS, "card"),
        topology=topology,
        is_strict=values.get(TOPOLOGY_POLICY) == "strict",
        seats=seats,
        roms=roms,
        allow_emulation=values.get(_ALLOW_EMULATION) == "true",
        nearest_machine=NEAREST in values,
        in_cliques=P2P in values,
        maps_bars=values.get(NO_MMAP) != "true",
        by_iommufd=values.get(VFIO) == "iommufd",
        asks_nvidia_smi=_ASK_GUEST in values,
        memfd=values.get(_MEMFD) != "false",
        free_page_reporting=values.get(_NO_FREE_PAGES) != "true",
        has_hole=not is_true(value.get(_NO_HOLE)),
        ignition=str(value.get(_IGNITION) or ""),
        even_emulator=_EVEN_EMULATOR in value,
        suspend_to=value.get(SUSPEND_TO) or "",
        suspends_on_drain=ON_DRAIN in values,
        selection=read_selection(value),
        written=value,
    )


def _refuse_no_config(text: Any) -> None:
    """Raise Nonsense for a text that is no config of Ignition's, which KubeVirt passes on or leaves out in silence."""
    try:
        config = json.loads(text.encode()) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        config = None
    if not (isinstance(config, dict) and isinstance(config.get("ignition"), dict)):
        fix = 'expected JSON like {"ignition": {"version": "3.4.0"}}, which butane makes of YAML'
        raise Nonsense(f"{_IGNITION}: is no config of Ignition's", fix)


def _read_seats(text: Any) -> Mapping[str, int]:
    """Return seats by name; Nonsense for any other JSON, and for two names on one seat."""
    names: dict[int, str] = {}
    for name, seat in _pairs(SEATS_OF, text, "expected a JSON object with names and seats, like '{\"gpu2\": 3}'"):
        if type(seat) is not int or not 0 <= seat < SEATS:  # JSON's true is none of Python's numbers here
            raise Nonsense(f"{SEATS_OF}: {name!r} has {excerpt(seat)}", f"expected a seat from 0 to {SEATS - 1}")
        if name in names.values():
            raise Nonsense(f"{SEATS_OF}: {name!r} is there twice", "leave one of them out")
        if seat in names:
            raise Nonsense(
                f"{SEATS_OF}: {names[seat]!r} and {name!r} both have seat {seat}", "expected a seat for each"
            )
        names[seat] = name
    return {name: seat for seat, name in names.items()}


def _read_roms(text: Any) -> Mapping[str, ROMFile | None]:
    """Return ROMs by name, None for "off"; Nonsense for any other JSON."""
    roms: dict[str, ROMFile | None] = {}
    fix = "expected 'off', or a volume of the VM and a path below it, like 'roms/gpu.rom'"
    for name, rom in _pairs(ROM_OF, text, 'expected a JSON object like \'{"gpu1": "roms/gpu.rom"}\''):
        if name in roms:
            raise Nonsense(f"{ROM_OF}: {name!r} is there twice", "leave one of them out")
        if rom == "off":
            roms[name] = None
            continue
        if not isinstance(rom, str) or not rom.isprintable() or len(rom) > _LONGEST_PATH:
            raise Nonsense(f"{ROM_OF}: {name!r} has {excerpt(rom)}", fix)
        volume, *path = rom.split("/")
        if not path or {"", ".", ".."} & {volume, *path}:
            raise Nonsense(f"{ROM_OF}: {name!r} has {excerpt(rom)}", fix)
        roms[name] = ROMFile(volume=volume, path="/".join(path))
    return roms


def _pairs(annotation: str, text: Any, fix: str) -> "_Pairs":
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, _Pairs):
        raise Nonsense(f"{annotation}: {excerpt(text)}", fix)
    return pairs


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written, with names that are there twice."""
