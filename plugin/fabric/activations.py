"""The partitions that were activated for this plugin, and their owners, in a file that outlives plugin and manager.

    {"activations": [{"partition": 3, "modules": [1, 3], "devices": ["0000:07:00.0", "0000:47:00.0"],
                      "pod": "default/vm", "claim": null, "is_active": true}], "others": [9]}

The file is written before the manager is asked to activate a partition, so an active partition that is not in the file
is another program's. If the file exists, this node's manager has had partitions.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from plugin.fabric.abi import MOST_PARTITIONS
from plugin.state_files import StateFile, json_of, locked_within


@dataclass(frozen=True, slots=True, order=True)
class Activation:
    """One partition and its owner, a claim's UID or a pod (`namespace/name`).

    `devices` are the device IDs of the claim, or of the kubelet's answer. The kubelet does not say for which pod it
    allocates, so `pod` is None until it lists a pod with these devices. `is_active` is False until the manager has
    activated the partition.
    """

    partition: int
    modules: tuple[int, ...]
    devices: tuple[str, ...]
    pod: str | None = None
    claim: str | None = None
    is_active: bool = False

    @property
    def owner(self) -> str:
        if self.claim is not None:
            return f"claim {self.claim}"
        return "a pod that the kubelet has not listed yet" if self.pod is None else f"pod {self.pod}"


@dataclass(frozen=True, slots=True)
class Owners:
    """All activations of the node, and `others`: partitions that were active for somebody else at the last look."""

    activations: tuple[Activation, ...] = ()
    others: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        numbers = {*self.others, *(number for each in self.activations for number in (each.partition, *each.modules))}
        if len(self.activations) > MOST_PARTITIONS or min(numbers, default=0) < 0:
            raise ValueError(self)

    def overlapping(self, modules: Iterable[int]) -> tuple[Activation, ...]:
        wanted = set(modules)
        return tuple(each for each in self.activations if wanted & set(each.modules))

    def of(self, partition: int) -> Activation | None:
        return next((each for each in self.activations if each.partition == partition), None)

    def with_activation(self, activation: Activation) -> "Owners":
        """Return the owners with this activation instead of the partition's former one."""
        return replace(self, activations=tuple(sorted((*self.without(activation.partition).activations, activation))))

    def without(self, partition: int) -> "Owners":
        return replace(self, activations=tuple(each for each in self.activations if each.partition != partition))


def owners_file(state: Path) -> StateFile[Owners]:
    """Return the file of the owners. An unreadable file does not count as empty: guests may have its partitions."""
    return StateFile(
        path=state / "partitions.json",
        of=json_of(Owners),
        wrong="is not what gpu-plugin wrote, and nobody knows who has which partition",
        fix="end the guests of the node, deactivate all partitions (fmpm), then remove the file",
    )


def locked(state: Path, within: float) -> AbstractAsyncContextManager[int]:
    """Keep out every other plugin of this node, also the old one in a rolling update, and give the lock's descriptor;
    Refusal if another plugin keeps the lock for `within` seconds."""
    fix = "try again, and see in its log what the other one waits for"
    return locked_within(within, state / "partitions.lock", fix)
