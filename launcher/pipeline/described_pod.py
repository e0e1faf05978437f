"""A place that the user describes, where nothing is started: `render` and `explain`."""

from dataclasses import dataclass, replace

from launcher.checks.devices import not_whole
from launcher.facts import Facts
from launcher.guest import Guest
from launcher.manifest.spec import Spec
from launcher.pipeline.pod import Pod, address_bits_in
from launcher.pipeline.start import Start
from launcher.versions import Version, too_new
from program.finding import Finding
from program.problem import Severity


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
            severity, problems = Severity.WARNING, tuple(element.problem(None) for element in newer)
        else:
            severity, problems = Severity.ERROR, too_new(newer, self.libvirt)
        of_versions = (Finding(severity, problem) for problem in problems)
        return start.having((*not_whole(start.cards, start.host), *of_versions))
