"""When the pod's container starts again, counts as ready, and has to be gone."""

from typing import Any

from launcher import paths
from launcher.manifest.spec import Spec, VirtualMachine, VirtualMachineInstance
from program.errors import UserError

#: Seconds for us, beside the guest's own grace. libvirt gives QEMU 10 to end by itself and waits 30 for it to be gone
#: (virProcessKillPainfullyDelay), in which the kernel gives back what VFIO has pinned; 5 for the launcher itself.
_OURS = 45
#: Seconds between two looks at whether the guest runs. Each is a process in the container.
_PERIOD = 5

_RESTART = {"Always": "Always", "RerunOnFailure": "OnFailure", "Once": "Never", "Manual": "Never"}


def restart_policy(manifest: VirtualMachine | VirtualMachineInstance) -> str:
    """The pod's `restartPolicy`, from when the VM is to run; UserError for one that is not to."""
    if isinstance(manifest, VirtualMachineInstance):
        return "Never"
    strategy, running = manifest.spec.runStrategy, manifest.spec.running
    if (strategy is None) == (running is None):
        raise UserError(
            "spec",
            f"says {'neither runStrategy nor' if strategy is None else 'both runStrategy and'} running",
            "expected one of them, like runStrategy: Always",
        )
    if strategy == "Halted" or running is False:
        said = "runStrategy: Halted" if running is None else "running: false"
        raise UserError(
            "spec",
            f"{said} is a VM that is not to run, so it has no pod",
            "write runStrategy: Always, RerunOnFailure, Once or Manual",
        )
    return "Always" if strategy is None else _RESTART[strategy]


def grace(spec: Spec) -> int:
    """Seconds from the pod's deletion to the kubelet's SIGKILL."""
    return spec.terminationGracePeriodSeconds + _OURS


def readiness_probe() -> dict[str, Any]:
    """The file is there exactly while the guest runs."""
    return {"exec": {"command": ["test", "-e", paths.READY]}, "periodSeconds": _PERIOD, "failureThreshold": 1}
