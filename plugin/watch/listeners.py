"""Opens the sources of changes of a node; each rings a bell."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from plugin.cards.nodes import CDEVS, VFIO
from plugin.watch.events import Bell, directories, uevents
from plugin.watch.watch import Sources

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bells:
    """A bell for each thing that may have changed.

    `sysfs` rings at the kernel's event about a device, when the kernel answers at last for a silent file, and when a
    card may have gone out of service or come back; `nodes` when an entry comes or goes in /dev; `config` when the
    config file may have changed; `kubelet` when the kubelet may have given out or taken back a device.
    """

    sysfs: Bell = field(default_factory=Bell)
    nodes: Bell = field(default_factory=Bell)
    config: Bell = field(default_factory=Bell)
    kubelet: Bell = field(default_factory=Bell)


@contextlib.contextmanager
def listening(sources: Sources, ending: asyncio.Event) -> Iterator[Bells]:
    """Listen until the block ends; set `ending` when nothing can be read any more. Enter it before the first look, so
    as to miss no change in between."""
    bells, dev = Bells(), sources.dev
    with contextlib.ExitStack() as stack:
        stack.enter_context(directories([dev / VFIO, dev / CDEVS, dev, dev / "net"], bells.nodes.ring))
        if sources.config is not None:
            # A changed ConfigMap is another link in the file's directory; an editor may write the file in its place.
            stack.enter_context(directories([sources.config.absolute().parent], bells.config.ring, written=True))
        if sources.cordons is not None:
            stack.enter_context(directories([sources.cordons], bells.sysfs.ring, written=True))
        try:
            stack.enter_context(uevents(bells.sysfs.ring))
        except OSError as error:
            _log.warning("no events from the kernel, changes are seen every %g s: %s", sources.rescan, error.strerror)
        stack.enter_context(sources.reader.listening(heard=bells.sysfs.ring, lost=ending.set))
        yield bells
