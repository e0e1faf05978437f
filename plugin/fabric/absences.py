"""Which pods are gone, by the kubelet's lists. A kubelet that starts lists fewer pods than there are; it lists a new
pod late."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plugin.changes.users import KubeletList
from plugin.fabric.activations import Activation

#: Seconds for which a pod has to be missing before it is gone.
GONE_AFTER = 10.0
#: Seconds in which the kubelet lists a pod for which it has allocated.
_LISTED_WITHIN = 60.0


@dataclass(slots=True)
class Absences:
    """The times since which pods are missing. `own_pod` is this plugin's pod, `namespace/name`: a list without it may
    lack other pods too. A pod that is missing for `at_most` seconds counts as gone."""

    own_pod: str | None
    at_most: float
    since: dict[Activation, float] = field(default_factory=dict)

    def is_missing(self, activation: Activation, listed: KubeletList) -> bool:
        """Whether the list is complete and lacks the pod that the partition was activated for."""
        is_whole = self.own_pod is None or self.own_pod in listed.pods
        return is_whole and holder(activation, listed) is None

    def gone(self, activations: Sequence[Activation], listed: KubeletList, now: float) -> tuple[Activation, ...]:
        """Return the activations whose pods have been missing from all lists for so long that they are gone."""
        missing = [each for each in activations if self.is_missing(each, listed)]
        self.since = {each: self.since.get(each, now) for each in missing}
        patience = {each: _LISTED_WITHIN if each.pod is None else GONE_AFTER for each in missing}
        return tuple(each for each in missing if now - self.since[each] >= min(self.at_most, patience[each]))


def holder(activation: Activation, listed: KubeletList) -> str | None:
    """Return the pod that has a device of the partition: the one that it was activated for, if known."""
    pods = sorted({each.pod for each in listed.assignments if each.device_id in activation.devices})
    if activation.pod is None:
        return pods[0] if pods else None
    return activation.pod if activation.pod in pods else None
