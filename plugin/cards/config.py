"""The admin's config: which functions and mediated devices are offered, and under which names.

    offer:                             # in order: the first rule that fits a function of a card counts for the card
    - device: "10de:1f08"              # selectors; all that a rule has must fit one function
      driver: vfio-pci
      resource: nvidia.com/pgpu        # a name of the admin's,
    - vendor: "15b3"
      pci_class: "0200"                # 2, 4 or 6 digits
      prefix: example.com              # or the name from pci.ids below another prefix,
      reset_method: bus                # while vfio has the card: which reset the kernel has ([]: none, and VFIO resets
      d3cold_allowed: false            # its bus), and whether it may lose its power
    - address: ["0000:41:00.0", "0000:61:00.0"]
      withhold: true                   # or not at all
    - address: "0000:81:00.0"
      prefix: nvidia.com
      team: ml                         # with DRA: for claims of the namespaces with the label gpu-launcher.dev/team=ml
    groups: together                   # an IOMMU group of several cards: `withhold` (the default) or one unit
    deadly_resets: withhold            # cards of models that do not survive a reset; `offer` is the default
    prefer: {nvidia.com/pgpu: spread}  # which of the free ones: tightest, pack or spread
    node_devices: {kvm: 110}           # /dev/kvm for 110 containers at once
    serve: dra                         # by Dynamic Resource Allocation; `device-plugin` is the default, and a rule of
                                       # `offer` may say either for its devices
    bind: when-claimed                 # what DRA serves stays with its host's driver until a claim has it; `beforehand`
                                       # is the default: only what vfio has already is served
    whole: [nvidia.com/hgx]            # a container gets all devices of this resource, or none
    fabric: {manager: 127.0.0.1:6666}  # NVLink in guests, by NVIDIA's Fabric Manager: docs/fabric.md
    vgpus:                             # what `gpu-plugin vgpus` cuts cards into: plugin.cards.vgpu_rules
    - device: "10de:26b9"
      types: {L40S-24Q: 2}

A GPU that no rule fits keeps its name from pci.ids. `plugin.config_file` reads the file; these are the values.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from pci.address import PCIAddress, address_or_none
from pci.driver_version import is_version
from pci.host import Function, Host, MediatedDevice
from pci.resource import NodeDevice
from plugin.cards.names import is_prefix, is_resource_name
from plugin.cards.preference import Policy
from plugin.cards.vgpu_rules import VGPURule, When
from program.errors import Nonsense

RuleSelector = str | tuple[str, ...]

#: The form of a label's value, and of a taint's.
TEAM = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

#: The words of `reset_method` (pci_reset_fn_methods in drivers/pci/pci.c).
RESET_METHODS = ("device_specific", "acpi", "flr", "af_flr", "pm", "bus", "cxl_bus")


class Groups(StrEnum):
    """How an IOMMU group with several cards is offered: not at all, or as one unit."""

    WITHHOLD = "withhold"
    TOGETHER = "together"


class DeadlyResets(StrEnum):
    """What becomes of cards whose model does not survive a reset (pci.resets): the doctor warns, or nobody gets one."""

    OFFER = "offer"
    WITHHOLD = "withhold"


class Serve(StrEnum):
    """The kubelet's protocol by which pods get a device."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"


class Bind(StrEnum):
    """When a card that DRA serves is bound to vfio: before it is offered, or by the DRA driver for a claim."""

    BEFOREHAND = "beforehand"
    WHEN_CLAIMED = "when-claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which devices are offered, and under which name; Nonsense if the fields contradict each other.

    A selector with several values fits any of them; every selector that is set has to fit. Exactly one of `resource`,
    `prefix` and `withhold` is set. `serve` is None for the config's own. `team`: whose the devices are alone, None for
    everybody's. `reset_method` (of the main function, in the kernel's words) and `d3cold_allowed` (of every function)
    are in force while vfio has the card; None for as they are.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (a constant, in the form pydantic expects it)

    vendor: RuleSelector = ()
    device: RuleSelector = ()
    subsystem: RuleSelector = ()
    pci_class: RuleSelector = ()
    address: RuleSelector = ()
    driver: RuleSelector = ()
    mdev_type: RuleSelector = ()
    vgpu_type: RuleSelector = ()
    resource: str | None = None
    prefix: str | None = None
    withhold: bool = False
    serve: Serve | None = None
    team: str | None = None
    reset_method: RuleSelector | None = None
    d3cold_allowed: bool | None = None

    def __post_init__(self) -> None:
        for name, selector in SELECTORS.items():
            values: RuleSelector = getattr(self, name)
            values = (values,) if isinstance(values, str) else tuple(values)
            for value in values:
                if not selector.takes(value):
                    raise Nonsense(f"found {name} {value!r}", f"expected {selector.expected}")
            if name == "address":
                values = tuple(str(PCIAddress.parse(value)) for value in values)  # nvidia-smi writes longer domains
            elif selector.is_hexadecimal:
                values = tuple(value.lower() for value in values)
            object.__setattr__(self, name, values)
        if not any(getattr(self, name) for name in SELECTORS):
            raise Nonsense("has no selector, to say what is offered", f"expected one of {', '.join(SELECTORS)}")
        names = [name for name in ("resource", "prefix", "withhold") if getattr(self, name) not in (None, False)]
        if len(names) != 1:
            raise Nonsense(
                f"has {' and '.join(names) or 'none'} of resource, prefix and withhold",
                "expected one of resource (a name), prefix (a name from pci.ids) and withhold: true",
            )
        if self.reset_method is not None:
            object.__setattr__(self, "reset_method", _reset_methods(self.reset_method))
        if self.reset_method is not None or self.d3cold_allowed is not None:
            if self.withhold:
                raise Nonsense("has reset_method or d3cold_allowed beside withhold", "what is withheld is not bound")
            if self.mdev_type or self.vgpu_type:
                raise Nonsense(
                    "has reset_method or d3cold_allowed beside mdev_type or vgpu_type",
                    "leave them out: those devices stay with their driver, and vfio resets nothing",
                )
        if self.withhold and self.serve is not None:
            raise Nonsense("has serve beside withhold", "what is withheld is not served: leave out one of them")
        if self.team is not None and not re.fullmatch(TEAM, self.team):
            raise Nonsense(f"found team {self.team!r}", "expected the value of a label, like 'ml'")
        if self.withhold and self.team is not None:
            raise Nonsense("has team beside withhold", "what is withheld is nobody's: leave out one of them")
        if self.mdev_type and (self.address or self.vgpu_type):
            raise Nonsense(
                "mdev_type is beside address or vgpu_type",
                "it goes with vendor, device, subsystem, pci_class and driver of the parent only",
            )
        if self.resource is not None and not is_resource_name(self.resource):
            raise Nonsense(
                f"{self.resource!r} is not an extended resource name", "expected prefix/name, like example.com/my-card"
            )
        if self.prefix is not None and not is_prefix(self.prefix):
            raise Nonsense(f"{self.prefix!r} is not a prefix of resources", "expected a domain, like example.com")

    def shadows(self, other: "Rule") -> bool:
        """True if this rule fits each device that the other rule can fit."""
        theirs: dict[str, tuple[str, ...]] = {name: getattr(other, name) for name in SELECTORS}
        theirs["vendor"] = theirs["vendor"] or tuple(device[:4] for device in theirs["device"])
        classes = tuple(self.pci_class)
        return bool(self.mdev_type) == bool(other.mdev_type) and all(
            theirs[name]
            and all(value.startswith(classes) if name == "pci_class" else value in own for value in theirs[name])
            for name in SELECTORS
            if (own := getattr(self, name))
        )

    def fits(self, function: Function, vgpu_types: Mapping[int, str] = MappingProxyType({})) -> bool:
        """True if all selectors fit this function. `vgpu_types` are the names of NVIDIA's vGPU types by number."""
        if self.mdev_type:
            return False
        if self.vgpu_type:
            number = function.vgpu_type
            if number is None or not {str(number), vgpu_types.get(number)} & set(self.vgpu_type):
                return False
        return self._fits_function(function)

    def fits_mdev(self, mdev: MediatedDevice, parent: Function) -> bool:
        """True if all selectors fit this mediated device's type and its parent."""
        return mdev.type_name in self.mdev_type and self._fits_function(parent)

    def _fits_function(self, function: Function) -> bool:
        return (
            (not self.vendor or f"{function.vendor_id:04x}" in self.vendor)
            and (not self.device or function.pci_id in self.device)
            and (not self.subsystem or function.subsystem_id in self.subsystem)
            and (not self.pci_class or f"{function.pci_class:06x}".startswith(tuple(self.pci_class)))
            and (not self.address or str(function.address) in self.address)
            and (not self.driver or function.driver in self.driver)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """NVIDIA's Fabric Manager, which gives the GPUs of a guest their NVLinks on machines with NVSwitches.

    `manager` is where it listens: address:port, the path of a unix socket, or vsock:cid:port. `library` is its client
    library, by name or path. `modules` are GPUs' module IDs by PCI address; `modules_file` has the same, as JSON of the
    GPU operator or as nvidia-smi -q prints it. `resume`: the manager resumes after a restart (FABRIC_MODE_RESTART=1).
    `version`: the manager's; without it that of NVIDIA's driver on the host, which the manager starts beside only if
    both are of one version.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    manager: str = "127.0.0.1:6666"
    library: str = "libnvfm.so.1"
    modules: Mapping[str, int] = field(default_factory=dict)
    modules_file: str | None = None
    resume: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        if not _is_manager(self.manager):
            raise Nonsense(
                f"found manager {self.manager!r}",
                "expected address:port, the path of a unix socket, or vsock:cid:port, of at most 255 bytes",
            )
        if not self.library or "\0" in self.library:
            raise Nonsense(f"found library {self.library!r}", "expected a name or a path, like libnvfm.so.1")
        if self.version is not None and not is_version(self.version):
            raise Nonsense(f"found version {self.version!r}", "expected the manager's, in quotes, like '580.126.09'")
        by_module: dict[int, str] = {}
        for address, module in self.modules.items():
            if address_or_none(address) is None:
                raise Nonsense(f"modules: found {address!r}", "expected a PCI address, like '0000:41:00.0'")
            if not 0 <= module < 64:
                raise Nonsense(
                    f"modules: {address}: found {module}", "expected the GPU's module ID, as of nvidia-smi -q"
                )
            if module in by_module:
                wrong = f"modules: {by_module[module]} and {address} are both module {module}"
                raise Nonsense(wrong, "expected a module ID of its own for each GPU")
            by_module[module] = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The admin's config. An empty one offers every NVIDIA, AMD and Intel GPU, and nothing else."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    offer: tuple[Rule, ...] = ()
    groups: Groups = Groups.WITHHOLD
    deadly_resets: DeadlyResets = DeadlyResets.OFFER
    prefer: Mapping[str, Policy] = field(default_factory=dict)
    node_devices: Mapping[NodeDevice, int] = field(default_factory=dict)
    serve: Serve = Serve.DEVICE_PLUGIN
    bind: Bind = Bind.BEFOREHAND
    whole: tuple[str, ...] = ()
    fabric: Fabric | None = None
    vgpus: tuple[VGPURule, ...] = ()

    @property
    def shadowed(self) -> tuple[tuple[int, int], ...]:
        """Pairs of rule numbers, from 0: an earlier rule and a rule that it shadows."""
        return tuple(
            (earlier, later)
            for later, rule in enumerate(self.offer)
            for earlier in [next((number for number in range(later) if self.offer[number].shadows(rule)), None)]
            if earlier is not None
        )

    def claimable(self, host: Host, function: Function) -> VGPURule | None:
        """Return the rule of a virtual function's card, or of the card itself, if its vGPUs are made when claimed."""
        card = host.functions.get(function.card)
        rule = None if card is None else self.vgpus_of(card)
        return rule if rule is not None and rule.when is When.CLAIMED else None

    def vgpus_of(self, function: Function) -> VGPURule | None:
        """Return the rule for cutting the card of this physical function; None if no rule fits."""
        return next((rule for rule in self.vgpus if rule.fits(function)), None)

    @property
    def uses_dra(self) -> bool:
        """True if any device may be served by DRA."""
        return Serve.DRA in (self.serve, *(rule.serve for rule in self.offer))

    def __post_init__(self) -> None:
        for word, resources in (("prefer", self.prefer), ("whole", self.whole)):
            for resource in resources:
                if not is_resource_name(resource):
                    raise Nonsense(f"{word}: {resource!r} is not an extended resource name", "expected prefix/name")
        for device, count in self.node_devices.items():
            if not 0 < count <= 10_000:
                raise Nonsense(
                    f"node_devices: {device}: found {count}",
                    "expected how many containers may share it, 1 to 10000",
                )
        for number, rule in enumerate(self.offer):
            if rule.team is not None and (rule.serve or self.serve) is not Serve.DRA:
                raise Nonsense(
                    f"offer.{number}.team: found {rule.team}, and the devices are served by device plugin",
                    "say serve: dra; or give them a resource of the team's own, as docs/tenants.md says",
                )
        for number, wish in enumerate(self.vgpus):
            if wish.when is When.CLAIMED and self.serve is not Serve.DRA:
                raise Nonsense(
                    f"vgpus.{number}.when: found claimed, and serve is {self.serve}",
                    "say serve: dra: only its claims tell which vGPU is wanted",
                )
        if self.bind is Bind.WHEN_CLAIMED:
            self._require_what_binding_takes()

    def _require_what_binding_takes(self) -> None:
        if not self.uses_dra:
            raise Nonsense(
                "bind: found when-claimed, and no device is served by DRA",
                "say serve: dra: the kubelet's device plugins are not told when a pod has ended",
            )
        for number, rule in enumerate(self.offer):
            if rule.driver and not rule.mdev_type:
                raise Nonsense(
                    f"offer.{number}.driver: is beside bind: when-claimed",
                    "leave it out: a card has another driver while a claim has it, and would be another device",
                )


def _reset_methods(words: RuleSelector) -> tuple[str, ...]:
    methods = tuple(words.split() if isinstance(words, str) else words)
    for method in methods:
        if method not in RESET_METHODS:
            raise Nonsense(f"found reset_method {method!r}", f"expected any of {', '.join(RESET_METHODS)}, or []")
    return methods


def _is_manager(text: str) -> bool:
    if not text.isprintable() or len(text.encode()) > 255:
        return False
    if text.startswith("/"):
        return True
    cid, _, port = text.removeprefix("vsock:").rpartition(":")
    if text.startswith("vsock:") and not _is_number(cid, 2**32):
        return False
    return bool(cid) and _is_number(port, 65536)


def _is_number(text: str, below: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 11 and int(text) < below


@dataclass(frozen=True, slots=True)
class _Selector:
    takes: Callable[[str], object]
    expected: str
    pattern: str | None = None

    @property
    def is_hexadecimal(self) -> bool:
        return self.pattern is not None


def _hexadecimal(pattern: str, expected: str) -> _Selector:
    return _Selector(re.compile(pattern).fullmatch, expected, pattern)


_ID = "[0-9a-fA-F]{4}"
_IDS = f"{_ID}:{_ID}"

#: The selectors of a rule, by name.
SELECTORS: Mapping[str, _Selector] = {
    "vendor": _hexadecimal(_ID, "four hexadecimal digits, like '10de'"),
    "device": _hexadecimal(_IDS, "vendor:device in hexadecimal, like '10de:1f08'"),
    "subsystem": _hexadecimal(_IDS, "vendor:device of the board in hexadecimal, like '1462:3756'"),
    "pci_class": _hexadecimal("([0-9a-fA-F]{2}){1,3}", "2, 4 or 6 hexadecimal digits, like '0302'"),
    "address": _Selector(address_or_none, "a PCI address, like '0000:41:00.0'"),
    "driver": _Selector(bool, "a driver, like 'vfio-pci'"),
    "mdev_type": _Selector(bool, "a type of mediated devices, like 'GRID T4-1Q'"),
    "vgpu_type": _Selector(bool, "a type of vGPUs by name or number, like 'NVIDIA L40S-1B' or '1145'"),
}
