"""The types of vGPUs by their names, and how vGPUs of one card exclude each other, as counters of Kubernetes
(sharedCounters and consumesCounters of a ResourceSlice, KEP-4815): what a set of vGPUs consumes fits in the counters if
and only if the card's driver makes that set.

On one card NVIDIA's driver makes only vGPUs of one size, unless the card is in the mode of mixed sizes. One counter of
1 cannot express this: the first vGPU would consume it, and no other of its size could. So each vGPU has its own
counter, except those of one size. It consumes its counter whole, and a vGPU of any other size consumes 1 of it.

MIG-backed vGPUs are made of GPU instances, which the admin has made: vGPUs of one instance do not keep vGPUs of other
sizes from being made of other instances.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

#: `L40S-24Q`: gigabytes and series.
_SIZE = re.compile(r"-([1-9]\d{0,3})[A-Z]+$", re.ASCII)
#: `A100-1-5CME`: slices of the card, gigabytes, series, and what the GPU instance has beside compute.
_OF_INSTANCE = re.compile(r"-([1-9]\d{0,2})-[1-9]\d{0,3}[A-Z]([A-Z]*)$", re.ASCII)
_LONGEST_SLUG = 36  # in a DNS label it is between `vgpu-0000-41-00-0-` and `-255`
_DIGEST = 8

#: In a set of counters, and the sets that one device consumes from (resource/v1/types.go of Kubernetes).
COUNTERS_IN_A_SET, SETS_OF_A_CARD = 32, 2


@dataclass(frozen=True, slots=True)
class SharedCounters:
    """How much of each counter of a card is left for claims, and how much each vGPU consumes of which counters, by its
    type's name and its number from 0."""

    left: Mapping[str, int]
    consumed: Mapping[tuple[str, int], Mapping[str, int]]


def sharing(
    types: Mapping[str, int], *, mixed_sizes: bool, memory: int, functions: int, others: Sequence[str] = ()
) -> SharedCounters:
    """Return the counters of a card with its `memory` (gigabytes) and number of virtual `functions`. `types` has the
    most vGPUs of each type at once, by names that size_of knows; types of one size share the largest number among them.
    `others` are the types of existing vGPUs that no claim accounts for; an empty name for an unknown type. MIG-backed
    types do not mix with other types, and those of one kind of instance are of one size."""
    if any(map(instance_of, types)):
        return _of_instances(types, functions, others)
    if mixed_sizes:
        return _mixed(types, memory, functions, others)
    sizes: dict[int, dict[str, int]] = defaultdict(dict)
    for name, count in types.items():
        sizes[_gigabytes(name)][name] = count
    most = {size: min(max(its.values()), functions) for size, its in sizes.items()}
    used = [size_of(name) for name in others]
    left = {f"size-{size}": max(0, count - len(used)) if {*used} <= {size} else 0 for size, count in most.items()}
    consumed: dict[tuple[str, int], dict[str, int]] = {}
    for size, its in sizes.items():
        for name, count in its.items():
            own = {f"size-{size}": 1, **({_of_type(name): 1} if len(its) > 1 else {})}
            consumed |= {(name, number): dict(own) for number in range(count)}
            if len(its) > 1:
                left[_of_type(name)] = max(0, count - list(others).count(name))
    largest = max(sizes, key=lambda size: (sum(sizes[size].values()), size))
    for (name, number), its_own in list(consumed.items()):
        size = _gigabytes(name)
        if size == largest:
            continue
        counter, whole = f"{slug(name)}-{number}", max(count for other, count in most.items() if other != size)
        left[counter] = its_own[counter] = whole
        for (other, _), theirs in consumed.items():
            if _gigabytes(other) != size:
                theirs[counter] = 1
    return SharedCounters(left, consumed)


def _mixed(types: Mapping[str, int], memory: int, functions: int, others: Sequence[str]) -> SharedCounters:
    sizes, counts = [size_of(name) for name in others], Counter(others)
    used = memory if None in sizes else sum(filter(None, sizes))
    left = {"gigabytes": max(0, memory - used), "functions": max(0, functions - len(others))}
    left |= {_of_type(name): max(0, count - counts[name]) for name, count in types.items()}
    consumed = {
        (name, number): {"gigabytes": _gigabytes(name), "functions": 1, _of_type(name): 1}
        for name, count in types.items()
        for number in range(count)
    }
    return SharedCounters(left, consumed)


def _of_instances(types: Mapping[str, int], functions: int, others: Sequence[str]) -> SharedCounters:
    most: dict[str | None, int] = defaultdict(int)
    sizes: dict[str | None, int | None] = {}
    for name, count in types.items():
        kind = instance_of(name)
        most[kind], sizes[kind] = max(most[kind], count), size_of(name)
    used = Counter(instance_of(name) for name in others)
    # How much of the instance a vGPU of another size takes, counted in vGPUs of this size, is not known.
    full = {instance_of(name) for name in others if size_of(name) != sizes.get(instance_of(name))}
    left = {"functions": 0 if None in used else max(0, functions - len(others))}
    left |= {f"instances-{kind}": 0 if kind in full else max(0, most[kind] - used[kind]) for kind in most}
    left |= {_of_type(name): max(0, count - list(others).count(name)) for name, count in types.items()}
    consumed = {
        (name, number): {"functions": 1, f"instances-{instance_of(name)}": 1, _of_type(name): 1}
        for name, count in types.items()
        for number in range(count)
    }
    return SharedCounters(left, consumed)


def instance_of(name: str) -> str | None:
    """Return the kind of GPU instance that a MIG-backed type is made of, as far as its name tells: `1` for `DC-1-24Q`,
    `1me` for `A100-1-5CME`; None for a type that is not MIG-backed."""
    kind = _OF_INSTANCE.search(name)
    return None if kind is None else f"{kind[1]}{kind[2].lower()}"


def plain(name: str) -> str:
    """Return the name of a type as people write it, without the maker's word: `L40S-24Q`, `T4-1Q`."""
    for maker in ("NVIDIA ", "GRID "):
        name = name.removeprefix(maker)
    return name


def size_of(name: str) -> int | None:
    """Return the gigabytes of memory of a type by its name, `L40S-24Q`; None if the name does not tell them."""
    return int(size[1]) if (size := _SIZE.search(name)) is not None else None


def slug(name: str) -> str:
    """Return the name of a type as a part of a DNS label: `l40s-24q`."""
    text = re.sub("[^a-z0-9]+", "-", plain(name).lower()).strip("-")
    if len(text) <= _LONGEST_SLUG:
        return text
    return f"{text[: _LONGEST_SLUG - _DIGEST - 1]}-{sha256(text.encode()).hexdigest()[:_DIGEST]}"


def _gigabytes(name: str) -> int:
    size = size_of(name)
    assert size is not None, name
    return size


def _of_type(name: str) -> str:
    return f"type-{slug(name)}"
