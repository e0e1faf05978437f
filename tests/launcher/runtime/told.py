"""What a VM tells its subscribers, for a test to wait for."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from launcher.runtime.vm import VM, Change, Phase
from tests.waiting import allowed


class Changes(Iterator[Change]):
    """Each change as it comes, to the VM's end. Empty after two minutes without one."""

    def __init__(self) -> None:
        self.unread: SimpleQueue[Change] = SimpleQueue()
        self._ended = False

    def __next__(self) -> Change:
        if self._ended:
            raise StopIteration
        change = self.unread.get(timeout=allowed(120))
        self._ended = change.phase is Phase.ENDED
        return change


@contextmanager
def told(vm: VM) -> Iterator[Changes]:
    changes = Changes()
    with vm.telling(changes.unread.put):
        yield changes
