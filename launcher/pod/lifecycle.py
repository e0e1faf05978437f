"""When the pod's container starts again, and when it has to be gone."""

from launcher.manifest.spec import Spec, VirtualMachine, VirtualMachineInstance
from program.errors import UserError

#: Seconds for us, beside the guest's own grace. libvirt gives QEMU 10 to end by itself and waits 30 for it to be gone
#: (virProcessKillPainfullyDelay), in which the kernel gives back what VFIO has pinned; 5 for the launcher itself.
_OURS = 45

_RESTART = {"Always": "Always", "RerunOnFailure": "OnFailure", "Once": "Never", "Manual": "Never"}


def restart_policy(manifest: VirtualMachine | VirtualMachineInstance, *, start: bool) -> str:
    """The pod's `restartPolicy`, from when the VM is to run; UserError for one that is not to.

    With `start` such a VM is to run: always, as after `virtctl start` (pkg/virt-api/rest, StartVMRequestHandler).
    """
    if isinstance(manifest, VirtualMachineInstance):
        return "Never"
    strategy, running = manifest.spec.runStrategy, manifest.spec.running
    if strategy is not None and running is not None:
        raise UserError("spec", "says both runStrategy and running", "expected one of them, like runStrategy: Always")
    if strategy in (None, "Halted") and not running:
        if start:
            return "Always"
        state = "running: false" if running is False else f"runStrategy: {strategy}"
        if strategy is None and running is None:
            state = "neither runStrategy nor running"
        fix = "start it with --start, or write runStrategy: Always, RerunOnFailure, Once or Manual"
        raise UserError("spec", f"says {state}: a VM that is not to run has no pod", fix)
    return "Always" if strategy is None else _RESTART[strategy]


def grace(spec: Spec) -> int:
    """Seconds from the pod's deletion to the kubelet's SIGKILL."""
    return spec.terminationGracePeriodSeconds + _OURS
