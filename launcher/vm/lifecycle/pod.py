"""When the pod's container starts again, when it has to be gone, and what the kubelet asks of it.

The probes are the manifest's, as KubeVirt's controller makes them (pkg/virt-controller/services, template.go and
rendercontainer.go), with `gpu-launcher ctl guest` in place of virt-probe. The pod's address is the guest's, so the
kubelet asks the guest's ports itself; what the guest's agent answers is asked in the container.
"""

from launcher.vm import paths
from launcher.vm.lifecycle.manifest import HTTPGet, Probe, TCPSocket, port_named
from launcher.vm.network.manifest import Interface
from launcher.vm.plain import PodObject
from launcher.vm.spec import Spec, VirtualMachine, VirtualMachineInstance
from program.errors import UserError

#: Seconds for us, beside the guest's own grace. libvirt gives QEMU 10 to end by itself and waits 30 for it to be gone
#: (virProcessKillPainfullyDelay), in which the kernel gives back what VFIO has pinned; 5 for the launcher itself.
_OURS = 45

_RESTART = {"Always": "Always", "RerunOnFailure": "OnFailure", "Once": "Never", "Manual": "Never"}
#: KubeVirt's LibvirtStartupDelay: seconds before the guest's own delay begins.
_UNTIL_IT_STARTS = 10
#: Seconds that the container's command has beside those of the agent: KubeVirt's virt-probe has one, and Python takes
#: longer to start where CPUs are short.
_BESIDE_THE_AGENT = 5
#: Seconds between two looks at whether the guest runs, where the manifest has no probe. Each is a process.
_PERIOD = 5
#: Seconds that a start may take, of minutes for a large guest with devices: nothing is tried again before.
LONGEST_START = 3600
#: Kubernetes' own defaults, which KubeVirt writes out (SetDefaults_Probe).
_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def restart_policy(manifest: VirtualMachine | VirtualMachineInstance, *, start: bool) -> str:
    """Return the pod's `restartPolicy`; UserError for a VM that is not to run.

    With `start` such a VM is to run: always, as after `virtctl start` (pkg/virt-api/rest, StartVMRequestHandler).
    """
    if isinstance(manifest, VirtualMachineInstance):
        return "Never"
    strategy, running = manifest.spec.runStrategy, manifest.spec.running
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
    """Return the seconds from the pod's deletion to the kubelet's SIGKILL."""
    return spec.terminationGracePeriodSeconds + _OURS


def probes(spec: Spec) -> PodObject:
    """Return the container's `livenessProbe`, if the manifest has one, and its `readinessProbe`. No guest fails the
    first before it runs: a `startupProbe` waits for that."""
    # The file is there exactly while the guest runs.
    runs = {"exec": {"command": ["test", "-e", paths.READY]}, "periodSeconds": _PERIOD}
    liveness: PodObject = {}
    if spec.livenessProbe is not None:
        liveness = {
            "livenessProbe": _probe(spec.livenessProbe, spec.on_pods_network),
            "startupProbe": {**runs, "failureThreshold": LONGEST_START // _PERIOD},
        }
    if spec.readinessProbe is not None:
        return {**liveness, "readinessProbe": _probe(spec.readinessProbe, spec.on_pods_network)}
    return {**liveness, "readinessProbe": {**runs, "failureThreshold": 1}}


def _probe(probe: Probe, interfaces: tuple[Interface, ...]) -> PodObject:
    numbers = {name: getattr(probe, name) or default for name, default in _DEFAULTS.items()}
    timing = {"initialDelaySeconds": probe.initialDelaySeconds + _UNTIL_IT_STARTS, **numbers}
    if probe.httpGet is not None:
        return {"httpGet": _http(probe.httpGet, interfaces), **timing}
    if probe.tcpSocket is not None:
        return {"tcpSocket": _tcp(probe.tcpSocket, interfaces), **timing}
    ctl = ["gpu-launcher", "ctl", "guest"]
    flag = f"--timeout={timing['timeoutSeconds']}"
    command = [*ctl, "ping", flag] if probe.exec is None else [*ctl, "exec", flag, "--", *probe.exec.command]
    return {"exec": {"command": command}, **timing, "timeoutSeconds": timing["timeoutSeconds"] + _BESIDE_THE_AGENT}


def _http(action: HTTPGet, interfaces: tuple[Interface, ...]) -> PodObject:
    headers = [{"name": header.name, "value": header.value} for header in action.httpHeaders]
    return {
        **({"path": action.path} if action.path is not None else {}),
        **_tcp(action, interfaces),
        "scheme": action.scheme,
        **({"httpHeaders": headers} if headers else {}),
    }


def _tcp(action: HTTPGet | TCPSocket, interfaces: tuple[Interface, ...]) -> PodObject:
    port = action.port if isinstance(action.port, int) else port_named(action.port, interfaces)
    return {"port": port, **({"host": action.host} if action.host is not None else {})}
