"""Which devices of a node a VM could get, and why it could not get each other one.

As the scheduler allocates (k8s.io/dynamic-resource-allocation/structured): a device has to match the selectors of class
and request, to be free, and to have only tolerated taints. Of these devices it takes the first, in the order of
publication, that the constraints allow together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from launcher.choosing.affinity import keeps_away
from launcher.choosing.cel import Expression, Unknowable
from launcher.choosing.claim import Rejection, Selector
from launcher.choosing.cluster import Cluster, Node, PublishedDevice, PublishedID
from launcher.choosing.requirements import Alternative, DeviceRequirements, Sharing, WantedDevice
from pci import slices as words

_MOST_STEPS = 1_000  # for one node; a claim is whatever somebody wrote
TOO_MANY = "the claim's constraints allow more combinations than are tried here"


#: A reason in short, as cards are counted by it; {} is the selector's source.
_NOT_SELECTED = {
    Rejection.OTHER_CLASS: "not of {}",
    Rejection.OTHER_MODEL: "another model",
    Rejection.OTHER_VENDOR: "no {}",
    Rejection.EXCLUDED: "excluded by {}",
}


#: What to show if the attribute is missing.
_NOT_KNOWN = {
    words.NVML_UUID: "its NVML UUID is not known",
    words.FABRIC_MANAGER_VERSION: "the version of its Fabric Manager is not known",
}


class _Kind(NamedTuple):
    """What wanted devices of one claim have in common: each device is judged once for all of them."""

    alternative: Alternative
    claim: str
    allocated: PublishedID | None


class _Option(NamedTuple):
    """A device that could be the wanted one, by the alternative with this number."""

    device: PublishedDevice
    alternative: int


class Reason(NamedTuple):
    """Why a card does not suit a VM: `short`, as in counts of cards, and in full. `source`: the selector's."""

    rejection: Rejection
    short: str
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A device, and why it is none of the wanted ones; None if it could be one of them."""

    device: PublishedDevice
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Placement:
    """What a node has for a VM. `devices`: those that the VM would get, each as the `wanted` one at its place; None if
    the node cannot take it, with the `reason`. `verdicts`: one for each device of the node. `unknowable`: the device
    for which a selector has no answer, and why. `is_refused`: the scheduler takes devices that gpu-plugin refuses."""

    node: str
    devices: tuple[PublishedDevice, ...] | None
    reason: str | None
    verdicts: tuple[Verdict, ...]
    unknowable: str | None = None
    is_refused: bool = False
    wanted: tuple[WantedDevice, ...] = ()


class NodeMatcher:
    """Matches one VM's requirements with nodes. Compiles each expression once; UserError if that fails."""

    def __init__(self, requirements: DeviceRequirements, cluster: Cluster, of: "NodeMatcher | None" = None) -> None:
        """`of`: a matcher of similar requirements, whose compiled expressions are reused."""
        self.requirements = requirements
        self._cluster = cluster
        kinds = [
            [_Kind(alternative, wanted.claim, wanted.allocated) for alternative in wanted.alternatives]
            for wanted in requirements.devices
        ]
        self._kinds = list(dict.fromkeys(kind for each in kinds for kind in each))
        self._kinds_of = [[self._kinds.index(kind) for kind in each] for each in kinds]
        selectors = {selector for kind in self._kinds for selector in kind.alternative.selectors}
        known: Mapping[Selector, Expression] = {} if of is None else of._compiled
        self._compiled: Mapping[Selector, Expression] = {
            selector: known.get(selector) or Expression(selector.expression, selector.source)
            for selector in sorted(selectors, key=lambda selector: selector.expression)
        }

    def placement(self, node: Node) -> Placement:
        """Return what this node has for the VM, without verdicts if that wants no device."""
        if not self.requirements.devices:
            return Placement(node.name, (), None, ())
        could: list[list[PublishedDevice]] = [[] for _ in self._kinds]
        verdicts: list[Verdict] = []
        unknowable: str | None = None
        for device in node.devices:
            reason: Reason | None = None
            fits = False
            for number, kind in enumerate(self._kinds):
                try:
                    why = self._reason(device, kind)
                except Unknowable as error:
                    why = Reason(Rejection.UNKNOWABLE, "unknowable", f"a selector has no answer for it: {error}")
                    unknowable = unknowable or f"{device.id.name}: {error}"
                if why is None:
                    could[number].append(device)
                    fits = True
                else:
                    reason = why if reason is None else max(reason, why, key=lambda each: each.rejection)
            verdicts.append(Verdict(device, None if fits else reason))
        if unknowable is not None:
            text = f"the scheduler gives up on the whole pod: a selector has no answer for {unknowable}"
            return Placement(node.name, None, text, tuple(verdicts), unknowable)
        candidates = [
            [_Option(device, number) for number, kind in enumerate(its) for device in could[kind]]
            for its in self._kinds_of
        ]
        if node.broken and not all(candidates):
            return Placement(node.name, None, node.broken[0], tuple(verdicts))
        chosen = self._chosen(candidates)
        if isinstance(chosen, str):
            return Placement(node.name, None, chosen, tuple(verdicts))
        if (refused := self._refused(chosen)) is not None:
            return Placement(node.name, None, refused, tuple(verdicts), is_refused=True)
        return Placement(node.name, chosen, None, tuple(verdicts), wanted=self.requirements.devices)

    def _reason(self, device: PublishedDevice, kind: _Kind) -> Reason | None:
        """Return why the device is none of this kind; None if it is. A wrong model comes before a holder, since waiting
        for the device would not help."""
        if kind.allocated is not None:  # the scheduler asks nothing else of it
            has = f"{kind.claim} has {kind.allocated.name} of {kind.allocated.pool} already"
            return None if device.id == kind.allocated else Reason(Rejection.OTHER_CLAIM, "of another claim", has)
        holder = self._cluster.taken.get(device.id)
        for selector in kind.alternative.selectors:
            try:
                holds = self._compiled[selector].holds(device)
            except Unknowable:
                if holder is not None:  # the scheduler doesn't ask of what is taken
                    break
                raise
            if not holds:
                return _not_selected(device, selector)
        if device.cannot is not None:
            return Reason(Rejection.UNHEALTHY, "unhealthy", device.cannot)
        if holder is not None:
            return Reason(Rejection.TAKEN, "taken", f"taken by {holder}")
        if not self._cluster.has_room(device):
            return Reason(Rejection.TAKEN, "no room on its card", "its card has no room left for it")
        for taint in device.taints:
            if keeps_away(taint, kind.alternative.tolerations):
                return Reason(Rejection.TAINTED, f"tainted {taint.key}", f"tainted: {taint}")
        return None

    def _chosen(self, candidates: Sequence[Sequence[_Option]]) -> tuple[PublishedDevice, ...] | str:
        """Return the first devices that go together, one for each that is wanted; or why no devices do."""
        for one, its in zip(self.requirements.devices, candidates, strict=True):
            if not its:
                return f"no card here could be {one.name}"
        steps, sharings = _Steps(_MOST_STEPS), self.requirements.sharings
        consuming = any(option.device.consumes for each in candidates for option in each)
        try:
            if not consuming and (first := _first_fit(candidates, sharings)) is not None:
                return first
            if not _possible(candidates, (), steps):
                wanted = len(candidates)
                free = len({option.device.id for each in candidates for option in each})
                return f"{wanted} cards are wanted, and {free} could be had"
            if (apart := _apart(candidates, sharings, steps)) is not None:
                return apart
            if not _possible(candidates, sharings, steps):
                places = ", ".join(f"{sharing.place} ({sharing.source})" for sharing in sharings)
                return f"the cards that could be had do not go together: {places}"
            if not consuming:
                return _in_order(candidates, sharings, steps)
            without_room = f"not {len(candidates)} of the cards that could be had go together: they share room"
            return self._with_room(candidates, (), steps) or without_room
        except _TooManySteps:
            return TOO_MANY

    def _with_room(
        self, candidates: Sequence[Sequence[_Option]], chosen: tuple[_Option, ...], steps: "_Steps"
    ) -> tuple[PublishedDevice, ...] | None:
        """Return the first devices, beginning with the `chosen` ones, that go together and have room on their cards;
        None if there are none."""
        steps.take()
        devices = tuple(option.device for option in chosen)
        if len(chosen) == len(candidates):
            return devices
        for option in candidates[len(chosen)]:
            goes = _goes(option, len(chosen), chosen, self.requirements.sharings)
            if goes and self._cluster.has_room(*devices, option.device):
                all_of_them = self._with_room(candidates, (*chosen, option), steps)
                if all_of_them is not None:
                    return all_of_them
        return None

    def _refused(self, devices: Sequence[PublishedDevice]) -> str | None:
        """Return why gpu-plugin refuses these devices though the scheduler takes them: a claim's GPUs on a board with
        NVSwitches have to be one partition. None if it does not."""
        by_claim: dict[str, list[PublishedDevice]] = {}
        for wanted, device in zip(self.requirements.devices, devices, strict=True):
            if device.attribute(f"{words.DRIVER}/{words.MODULE_ID}") is not None:
                by_claim.setdefault(wanted.claim, []).append(device)
        for claim, gpus in by_claim.items():
            if len(gpus) > 1 and not _are_partition(gpus):
                which = ", ".join(str(gpu.attribute(words.PCI_BUS_ID) or gpu.id.name) for gpu in gpus)
                match = f"{words.DRIVER}/{words.PARTITION}{len(gpus)}"
                return (
                    f"the scheduler takes {which}, which are no partition with NVLink, and gpu-plugin refuses them: "
                    f"{claim} needs the constraint matchAttribute {match}"
                )
        return None


def _are_partition(gpus: Sequence[PublishedDevice]) -> bool:
    """Return whether these GPUs of a board are one whole partition: as many as it has, and all in it."""
    size = f"{words.PARTITION}{len(gpus)}"
    names = (name for name in gpus[0].attributes[words.DRIVER] if name.partition("_")[0] == size)
    return any(len({gpu.attributes[words.DRIVER].get(name) for gpu in gpus}) == 1 for name in names)


def _not_selected(device: PublishedDevice, selector: Selector) -> Reason:
    shown = None if selector.shows is None else device.attribute(selector.shows) or device.amount(selector.shows)
    shown = _NOT_KNOWN.get(selector.shows or "") if shown is None else shown
    short = _NOT_SELECTED[selector.rejection].format(selector.source)
    return Reason(selector.rejection, short, short if shown is None else f"{short}: {shown}", selector.source)


class _TooManySteps(Exception):
    pass


class _Steps:
    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManySteps


def _first_fit(
    candidates: Sequence[Sequence[_Option]], sharings: Sequence[Sharing]
) -> tuple[PublishedDevice, ...] | None:
    """Return each wanted device's first candidate that goes with those before; None if one has no such candidate."""
    chosen: list[_Option] = []
    for number, each in enumerate(candidates):
        option = next((option for option in each if _goes(option, number, chosen, sharings)), None)
        if option is None:
            return None
        chosen.append(option)
    return tuple(option.device for option in chosen)


def _goes(option: _Option, number: int, chosen: Sequence[_Option], sharings: Sequence[Sharing]) -> bool:
    if any(option.device.id == other.device.id for other in chosen):
        return False
    for sharing in sharings:
        if (number, option.alternative) not in sharing.bound:
            continue
        before = (other for at, other in enumerate(chosen) if (at, other.alternative) in sharing.bound)
        if not frozenset.intersection(*(each.device.values(sharing.attribute) for each in (option, *before))):
            return False
    return True


def _in_order(
    candidates: Sequence[Sequence[_Option]], sharings: Sequence[Sharing], steps: _Steps
) -> tuple[PublishedDevice, ...]:
    """Return, for each wanted device, the first candidate that leaves a solution for the rest; one has to exist."""
    rest = [list(each) for each in candidates]
    for number in range(len(rest)):
        for option in candidates[number]:
            tried = [*rest[:number], [option], *rest[number + 1 :]]
            if _possible(tried, sharings, steps):
                rest = tried
                break
    return tuple(each[0].device for each in rest)


def _possible(candidates: Sequence[Sequence[_Option]], sharings: Sequence[Sharing], steps: _Steps) -> bool:
    """Return whether each wanted device can have a candidate so that each sharing's devices have one value of its
    attribute in common."""
    steps.take()
    if not sharings:
        return _matched(candidates)
    first, *others = sharings
    values = dict.fromkeys(
        value
        for number in first.numbers
        for option in candidates[number]
        if (number, option.alternative) in first.bound
        for value in option.device.values(first.attribute)
    )
    # With None all of them may be alternatives that the sharing does not bind.
    for value in [*values, None]:
        having = [
            [
                option
                for option in each
                if (number, option.alternative) not in first.bound
                or (value is not None and value in option.device.values(first.attribute))
            ]
            for number, each in enumerate(candidates)
        ]
        if all(having) and _matched(having) and _possible(having, others, steps):
            return True
    return False


def _matched(candidates: Sequence[Sequence[_Option]]) -> bool:
    """Return whether each wanted device can have a candidate of its own: a matching, by augmenting paths."""
    holders: dict[PublishedID, int] = {}

    def give(number: int, seen: set[PublishedID]) -> bool:
        for device, _ in candidates[number]:
            if device.id in seen:
                continue
            seen.add(device.id)
            if device.id not in holders or give(holders[device.id], seen):
                holders[device.id] = number
                return True
        return False

    return all(give(number, set()) for number in range(len(candidates)))


def _apart(candidates: Sequence[Sequence[_Option]], sharings: Sequence[Sharing], steps: _Steps) -> str | None:
    """Return what is wrong with the first sharing that is impossible even by itself; None if each is possible."""
    for sharing in sharings:
        if not _possible(candidates, (sharing,), steps):
            having = (option.device for number in sharing.numbers for option in candidates[number])
            if all(device.attribute(sharing.attribute) is None for device in having):
                return f"of no card here that could be had the {sharing.place} is known ({sharing.source})"
            wanted = len(sharing.numbers)
            return f"not {wanted} of the cards that could be had share one {sharing.place} ({sharing.source})"
    return None
