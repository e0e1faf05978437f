"""The place of a start that flags describe, for `render` and `explain`, which start nothing."""

from dataclasses import dataclass, replace

from launcher.pipeline.pod import SYS, Pod, address_bits_in
from launcher.pipeline.start import Start
from launcher.vm.cards.checks import not_whole
from launcher.vm.checks import warning
from launcher.vm.cpu.facts import assumed, processors_for
from launcher.vm.facts import Facts
from launcher.vm.guest import Guest
from launcher.vm.spec import Spec
from launcher.vm.versions import Version, foreign, too_new
from pci.processors import Processors, cpulist
from program.finding import Finding
from program.problem import Severity

_SYSFS = "--sysfs, with devices/system/cpu and devices/system/node of the node, as gpu-plugin record copies them"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPod:
    """A pod that flags describe: its known facts, and the version of libvirt that the domain is for, None for any."""

    known_facts: Facts
    libvirt: Version | None = None

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        return replace(self.known_facts, address_bits=address_bits_in(pod)), ()

    def cpus(self, guest: Guest, pod: Pod) -> tuple[tuple[int, ...] | None, Processors, tuple[Finding, ...]]:
        """Assume what the flags leave out: the pod's CPUs, the node's processors, or both for another machine than this
        one."""
        processors, cpuset = processors_for(guest, pod.sysfs), self.known_facts.cpus
        if not guest.has_own_cpus or (cpuset is not None and processors.nodes and pod.sysfs != SYS):
            return cpuset, processors, ()
        cpus, node = assumed(guest, cpuset, processors)
        unknown = [
            *([("the pod's CPUs", cpulist(cpus), "--cpuset, with what the pod has, like 0-3,8")] * (cpuset is None)),
            *([("the node's cores and NUMA nodes", "one NUMA node", _SYSFS)] * (node is not processors)),
        ]
        if not unknown:
            return cpus, node, ()
        things, guesses, flags = (" and ".join(words) for words in zip(*unknown, strict=True))
        wrong = f"{things} are not known here: assumed {guesses}"
        return cpus, node, (warning("spec.domain.cpu.dedicatedCpuPlacement", wrong, f"expected {flags}"),)

    def machines(self, guest: Guest) -> frozenset[str] | None:
        return None

    def complete(self, start: Start) -> Start:
        """Add what the reader of a printed domain needs to know."""
        if start.xml is None:
            return start
        newer = tuple(newer for newer in start.newer if newer.program == "libvirt")
        if self.libvirt is None:
            severity, problems = Severity.WARNING, tuple(element.problem(None) for element in newer)
        else:
            severity, problems = Severity.ERROR, too_new(newer, self.libvirt)
        of_versions = (Finding(severity, problem) for problem in problems)
        other = foreign(start.guest.machine)
        of_machine = [] if other is None else [Finding(Severity.WARNING, other)]
        return start.with_findings((*not_whole(start.cards, start.host), *of_machine, *of_versions))
