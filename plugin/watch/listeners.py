"""Opens what tells of changes of a node: each rings a bell."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plugin.cards.nodes import CDEVS, VFIO
from plugin.watch.events import Bell, Directories, Uevents
from plugin.watch.watch import Sources

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bells:
    """One for each thing that may have changed.

    `sysfs` rings when the kernel tells of a device, or answers at last for one that it was silent about, `nodes` when
    something comes or goes in /dev, `config` when the config's file may be another one, `kubelet` when the kubelet may
    have given out or taken back a device.
    """

    sysfs: Bell = field(default_factory=Bell)
    nodes: Bell = field(default_factory=Bell)
    config: Bell = field(default_factory=Bell)
    kubelet: Bell = field(default_factory=Bell)


@contextlib.contextmanager
def listening(sources: Sources, ending: asyncio.Event) -> Iterator[Bells]:
    """Listen until the block ends; set `ending` when nothing can be read any more. Whoever listens before the first
    look misses nothing between the two."""
    bells = Bells()
    with contextlib.ExitStack() as stack:

        def listen(paths: list[Path], bell: Bell, *, written: bool = False) -> None:
            stack.callback(Directories(paths, bell.ring, written=written).close)

        listen([sources.dev / VFIO, sources.dev / CDEVS, sources.dev, sources.dev / "net"], bells.nodes)
        if sources.config is not None:
            # A changed ConfigMap is another link in the file's directory; an editor may write the file in its place.
            listen([sources.config.absolute().parent], bells.config, written=True)
        try:
            stack.callback(Uevents(bells.sysfs.ring).close)
        except OSError as error:
            _log.warning("no events from the kernel, changes are seen every %g s: %s", sources.rescan, error.strerror)
        stack.enter_context(sources.reader.listening(heard=bells.sysfs.ring, lost=ending.set))
        yield bells
