"""VMs with one interface on the pod's network, as manifests that are read."""

from pathlib import Path

from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vms import read_manifest, vmi_text


def vmi_of(directory: Path, interface: str | None, pod: str = "", devices: str = "") -> VirtualMachineInstance:
    """A VM whose interface says this, on a pod's network that says that; None for no network at all. `devices` are
    further lines below spec.domain.devices."""
    text = vmi_text()
    if interface is not None:
        card = f"interfaces: [{{name: default, {interface}}}]"
        text = text.replace("autoattachPodInterface: false", card)
        text += f"  networks: [{{name: default, pod: {{{pod}}}}}]\n"
    path = directory / "vm.yaml"
    path.write_text(text.replace("      gpus: []\n", f"      gpus: []\n{devices}"))
    return read_manifest(path)
