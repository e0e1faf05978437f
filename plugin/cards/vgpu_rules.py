"""The admin's rules for cutting cards: the part `vgpus` of the config.

vgpus:                              # in order: the first rule that fits a card counts for it
- device: "10de:26b9"               # vendor, device, subsystem, address: all that a rule has must fit
  types: {L40S-24Q: 2}              # so many vGPUs, or mediated devices, of each type, by its driver's name
  when: start                       # `claimed`: made by the DRA driver for claims, at most so many of each type
- vendor: "8086"
  functions: 8                      # so many virtual functions
  quota: {vram_quota: 2147483648}   # for each of them, by xe's files: bytes, milliseconds, microseconds
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pci.address import PCIAddress, address_or_none
from pci.functions import is_gpu
from pci.host import Function
from plugin.cards.vgpu_types import COUNTERS_IN_A_SET, SETS_OF_A_CARD, instance_of, plain, sharing, size_of, slug
from program.errors import Nonsense

_MOST = 4096  # virtual functions of a card, or vGPUs of a type


_MOST_CLAIMABLE = 256  # vGPUs of a card: a bus has no more functions
_MOST_COUNTERS = COUNTERS_IN_A_SET * SETS_OF_A_CARD


class When(StrEnum):
    """When vGPUs are made: by `gpu-plugin vgpus apply` at start, or by the DRA driver for the claim that gets one."""

    START = "start"
    CLAIMED = "claimed"


class Quota(StrEnum):
    """What xe gives a virtual function: bytes of VRAM, milliseconds of the engines, microseconds until it is ended."""

    VRAM = "vram_quota"
    EXEC_QUANTUM = "exec_quantum_ms"
    PREEMPT_TIMEOUT = "preempt_timeout_us"


@dataclass(frozen=True, slots=True, kw_only=True)
class VGPURule:
    """What the cards that all selectors fit are cut into: `types` or `functions`; without an `address`, only GPUs.
    With `when: claimed`, `types` are the most that a card has of each at once. Nonsense if the fields contradict each
    other."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (a constant, in the form pydantic expects it)

    vendor: str | None = None
    device: str | None = None
    subsystem: str | None = None
    address: str | tuple[str, ...] = ()
    types: Mapping[str, int] = field(default_factory=dict)
    mixed_sizes: bool = False
    when: When = When.START
    functions: int | None = None
    quota: Mapping[Quota, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        addresses = (self.address,) if isinstance(self.address, str) else tuple(self.address)
        for value in addresses:
            if address_or_none(value) is None:
                raise Nonsense(f"found address {value!r}", "expected a PCI address, like '0000:41:00.0'")
        object.__setattr__(self, "address", tuple(str(PCIAddress.parse(value)) for value in addresses))
        for selector, selected, form in (
            ("vendor", self.vendor, "four hexadecimal digits, like '10de'"),
            ("device", self.device, "vendor:device in hexadecimal, like '10de:26b9'"),
            ("subsystem", self.subsystem, "vendor:device of the board in hexadecimal, like '10de:1851'"),
        ):
            digits = "[0-9a-fA-F]{4}" if selector == "vendor" else "[0-9a-fA-F]{4}:[0-9a-fA-F]{4}"
            if selected is not None and not re.fullmatch(digits, selected):
                raise Nonsense(f"found {selector} {selected!r}", f"expected {form}")
        if not (self.vendor or self.device or self.subsystem or addresses):
            raise Nonsense("has no selector, to say which cards", "expected one of vendor, device, subsystem, address")
        if bool(self.types) == (self.functions is not None):
            raise Nonsense(
                f"has {'both' if self.types else 'none'} of types and functions",
                "expected one of types (how many vGPUs of each) and functions (how many virtual functions)",
            )
        if self.quota and self.functions is None:
            raise Nonsense("has quota beside types", "a type has its own memory: leave quota out")
        if self.mixed_sizes and not self.types:
            raise Nonsense("has mixed_sizes beside functions", "only vGPUs have sizes: leave mixed_sizes out")
        for name, count in self.types.items():
            if not plain(name) or not name.isprintable():
                raise Nonsense(f"types: found {name!r}", "expected the name of a type, like 'L40S-24Q'")
            if not 0 < count <= _MOST:
                raise Nonsense(f"types: {name}: found {count}", f"expected how many, 1 to {_MOST}")
        if twice := [name for name, count in Counter(map(plain, self.types)).items() if count > 1]:
            raise Nonsense(f"types: {twice[0]!r} stands twice, with its maker and without", "name each type once")
        if self.functions is not None and not 0 < self.functions <= _MOST:
            raise Nonsense(f"functions: found {self.functions}", f"expected how many, 1 to {_MOST}")
        if self.when is When.CLAIMED:
            self._require_what_claims_take()
        for file, number in self.quota.items():
            if not 0 <= number < 2**64:
                raise Nonsense(f"quota: {file}: found {number}", "expected a number that fits in 64 bits")

    def _require_what_claims_take(self) -> None:
        if not self.types:
            raise Nonsense("has when: claimed beside functions", "name types: virtual functions are made at start")
        for name in self.types:
            if size_of(name) is None:
                raise Nonsense(
                    f"types: {name} does not tell its memory, which when: claimed needs",
                    "expected a name that ends like 'L40S-24Q': gigabytes and series",
                )
        self._require_what_instances_take()
        if twice := [name for name, count in Counter(map(slug, self.types)).items() if count > 1]:
            raise Nonsense(f"types: two are {twice[0]!r} in the names of devices", "leave out one of them")
        if (count := sum(self.types.values())) > _MOST_CLAIMABLE:
            raise Nonsense(f"types: found {count} with when: claimed", f"expected {_MOST_CLAIMABLE} at most of a card")
        counters = sharing(self.types, mixed_sizes=self.mixed_sizes, memory=0, functions=_MOST_CLAIMABLE).left
        if len(counters) > _MOST_COUNTERS:
            wrong = f"types: to keep the sizes apart takes {len(counters)} counters of Kubernetes for each card"
            raise Nonsense(wrong, f"name fewer sizes or fewer vGPUs, for {_MOST_COUNTERS} counters at most")

    def _require_what_instances_take(self) -> None:
        by_kind = {instance_of(name): name for name in self.types}
        if by_kind.keys() == {None}:
            return
        if None in by_kind:
            of_instance = next(name for kind, name in by_kind.items() if kind is not None)
            wrong = f"types: {of_instance} is of a GPU instance, and {by_kind[None]} of a card without MIG mode"
            raise Nonsense(wrong, "expected two rules, for the addresses of the cards of each")
        if self.mixed_sizes:
            raise Nonsense("has mixed_sizes beside types of GPU instances", "leave it out: in MIG mode there is none")
        for name in self.types:
            other = by_kind[instance_of(name)]
            if size_of(name) != size_of(other):
                wrong = f"types: {name} and {other} may be of the same GPU instances, and sysfs does not tell it"
                raise Nonsense(wrong, "name one size for each number of slices, the first number of a type")

    def fits(self, function: Function) -> bool:
        """True if the rule is for the card of this physical function."""
        return (
            not function.is_virtual
            and (bool(self.address) or is_gpu(function))
            and (self.vendor is None or f"{function.vendor_id:04x}" == self.vendor.lower())
            and (self.device is None or function.pci_id == self.device.lower())
            and (self.subsystem is None or function.subsystem_id == self.subsystem.lower())
            and (not self.address or str(function.address) in self.address)
        )
