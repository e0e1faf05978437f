"""Which partitions this plugin has had activated, and for whom, in a file: it outlives the plugin and the manager.

    {"activations": [{"partition": 3, "modules": [1, 3], "devices": ["0000:07:00.0", "0000:47:00.0"],
                      "pod": "default/vm", "claim": null, "is_active": true}], "others": [9]}

It is written before the manager is asked to activate anything: what is active and not in it is another's. That the file
exists says that this node's manager had partitions once.
"""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from plugin.fabric.abi import MOST_PARTITIONS
from plugin.state_files import lock_within, write_whole
from program.errors import Refusal

_FILE = "partitions.json"
_LOCK = "partitions.lock"
_LONGEST = 1 << 20  # bytes


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


def read_book(state: Path) -> Book | None:
    """Return what was written; None if nothing ever was. Refusal if it cannot be read or is something else: whoever
    takes it for empty deactivates or gives away what a guest has."""
    path = state / _FILE
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refusal(path, f"cannot be read: {error.strerror}", "name a directory of root's with --state") from error
    try:
        document = json.loads(text)
        activations = tuple(
            sorted(
                Activation(
                    partition=_number(each["partition"]),
                    modules=tuple(map(_number, each["modules"])),
                    devices=tuple(map(_text, each["devices"])),
                    pod=None if each["pod"] is None else _text(each["pod"]),
                    claim=None if each["claim"] is None else _text(each["claim"]),
                    is_active=bool(each["is_active"]),
                )
                for each in document["activations"]
            )
        )
        others = tuple(map(_number, document["others"]))
        if len(activations) > MOST_PARTITIONS or len(text) > _LONGEST:
            raise ValueError(path)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refusal(
            path,
            "is not what gpu-plugin wrote, and nobody knows who has which partition",
            "end the guests of the node, deactivate all partitions (fmpm), then remove the file",
        ) from None
    return Book(activations, others)


def write_book(state: Path, book: Book) -> None:
    """Replace the file, whole or not at all, and on the disk when this returns; Refusal if it cannot be written."""
    document = {"activations": [asdict(each) for each in book.activations], "others": list(book.others)}
    try:
        write_whole(state / _FILE, json.dumps(document, indent=1) + "\n", sync=True)
    except OSError as error:
        raise Refusal(state / _FILE, f"cannot be written: {error.strerror}", "name a directory with --state") from error


@asynccontextmanager
async def locked(state: Path, within: float) -> AsyncIterator[int]:
    """Keep every other plugin of this node out, also one that is replaced by this one in a rolling update; Refusal if
    another keeps it for so many seconds. It is the open file's, whose number is given."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / _LOCK).open("ab")
    except OSError as error:
        raise Refusal(state, f"cannot be written: {error.strerror}", "name a directory with --state") from error
    with lock:
        try:
            await lock_within(lock, within)
        except TimeoutError:
            wrong = f"another gpu-plugin has kept it for {within:g} s"
            raise Refusal(state / _LOCK, wrong, "try again, and see in its log what the other one waits for") from None
        yield lock.fileno()


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
