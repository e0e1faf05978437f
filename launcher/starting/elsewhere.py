"""A place that the user describes, where nothing is started: `render` and `explain`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from launcher.checks.devices import not_whole
from launcher.checks.finding import Finding, warning
from launcher.facts import Facts
from launcher.guest import Guest
from launcher.manifest.spec import Spec
from launcher.starting.pod import Pod, address_bits_in
from launcher.starting.start import Refused, Start, tried
from launcher.versions import Newer, Version, refuse_newer, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What the user says of the place; `libvirt` is the version that the domain is for, None for whichever."""

    given: Facts
    libvirt: Version | None = None

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        return replace(self.given, address_bits=address_bits_in(pod)), ()

    def cpus(self, guest: Guest, pod: Pod) -> tuple[int, ...] | None:
        return self.given.cpus

    def judged(self, start: Start) -> Start:
        """What the reader of a printed domain has to know of it."""
        if start.xml is None:
            return start
        newer = tuple(newer for newer in start.newer if newer.program == "libvirt")
        if self.libvirt is None:
            return start.having((*not_whole(start.cards), *_newer(newer)))
        refused: list[Refused] = []
        tried(partial(refuse_newer, newer, self.libvirt), refused)
        return start.having(not_whole(start.cards), refused)


def _newer(elements: tuple[Newer, ...]) -> Iterator[Finding]:
    for newer in elements:
        yield warning(
            newer.field,
            f"{newer.element} needs {newer.program} {shown(newer.since)}",
            "say with --libvirt which one it is for, and what that does not know is refused",
        )
