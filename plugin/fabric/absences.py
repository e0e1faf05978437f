"""Which pods are gone, by the kubelet's lists: one that starts lists fewer pods than there are, and a new pod late."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plugin.cards.holders import Listed
from plugin.fabric.activations import Activation

#: Seconds for which a pod is listed no more before it is gone: a kubelet that starts may list less than there is.
GONE_AFTER = 10.0
#: Seconds in which the kubelet lists a pod for which it has allocated.
_LISTED_WITHIN = 60.0


@dataclass(slots=True)
class Absences:
    """Since when pods are missing. `own_pod` is this plugin's pod, `namespace/name`: a list of the kubelet's without it
    is not whole. No pod has to be missing for longer than `at_most` seconds."""

    own_pod: str | None
    at_most: float
    since: dict[Activation, float] = field(default_factory=dict)

    def is_missing(self, activation: Activation, listed: Listed) -> bool:
        """Return whether a list that has all pods does not have the one that a partition was activated for."""
        return self._is_whole(listed) and holder(activation, listed) is None

    def gone(self, activations: Sequence[Activation], listed: Listed, now: float) -> tuple[Activation, ...]:
        """Return those whose pods have been missing from all lists for so long that they are gone."""
        missing = [each for each in activations if self.is_missing(each, listed)]
        self.since = {each: self.since.get(each, now) for each in missing}
        return tuple(each for each, since in self.since.items() if now - since >= self._patience(each))

    def _patience(self, activation: Activation) -> float:
        return min(self.at_most, _LISTED_WITHIN if activation.pod is None else GONE_AFTER)

    def _is_whole(self, listed: Listed) -> bool:
        """Return whether the list has all pods: one that starts knows those of the API server last, this one too."""
        return self.own_pod is None or self.own_pod in listed.pods


def holder(activation: Activation, listed: Listed) -> str | None:
    """Return the pod that has a device of the partition and may be the one it was activated for."""
    pods = sorted({each.pod for each in listed.assignments if each.device_id in activation.devices})
    if activation.pod is None:
        return pods[0] if pods else None
    return activation.pod if activation.pod in pods else None
