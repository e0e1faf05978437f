"""All that is served on the control socket, for one VM."""

from launcher.control.health import health
from launcher.control.kubevirt import kubevirt
from launcher.control.methods import Method
from launcher.control.virtual_machine import virtual_machine
from launcher.running.vm import VM


def methods_for(vm: VM) -> dict[str, Method]:
    """KubeVirt's services, gRPC's health service and our own, by path."""
    return kubevirt(vm) | health(vm) | virtual_machine(vm)
