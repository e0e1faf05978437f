"""Which partitions this plugin has had activated, and for whom, in a file: it outlives the plugin and the manager.

    {"activations": [{"partition": 3, "modules": [1, 3], "devices": ["0000:07:00.0", "0000:47:00.0"],
                      "pod": "default/vm", "claim": null, "is_active": true}], "others": [9]}

It is written before the manager is asked to activate anything: what is active and not in it is another's. That the file
exists says that this node's manager had partitions once.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from plugin.fabric.abi import MOST_PARTITIONS
from plugin.state_files import StateFile, json_of, locked_within


@dataclass(frozen=True, slots=True, order=True)
class Activation:
    """One partition and whom it is for.

    `devices` are the IDs that the kubelet was, or a claim is given. A claim is known from the start; the kubelet never
    says for which pod it allocates, so `pod` (`namespace/name`) is None until it lists one that has the devices.
    `is_active` is False from before the manager is asked until it has said yes.
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
class Book:
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

    def having(self, activation: Activation) -> "Book":
        """Return the book with this activation in place of that of the same partition."""
        return replace(self, activations=tuple(sorted((*self.without(activation.partition).activations, activation))))

    def without(self, partition: int) -> "Book":
        return replace(self, activations=tuple(each for each in self.activations if each.partition != partition))


def book_file(state: Path) -> StateFile[Book]:
    """Return where the book is. Whoever takes one that cannot be read for empty deactivates or gives away what a guest
    has."""
    return StateFile(
        path=state / "partitions.json",
        of=json_of(Book),
        wrong="is not what gpu-plugin wrote, and nobody knows who has which partition",
        fix="end the guests of the node, deactivate all partitions (fmpm), then remove the file",
    )


def locked(state: Path, within: float) -> AbstractAsyncContextManager[int]:
    """Keep every other plugin of this node out, also one that is replaced by this one in a rolling update; Refusal if
    another keeps it for so many seconds. It is the open file's, whose number is given."""
    fix = "try again, and see in its log what the other one waits for"
    return locked_within(within, state / "partitions.lock", fix)
