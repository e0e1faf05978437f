"""VFIO without IOMMUFD, as every Debian has it: cards go by their IOMMU groups alone."""

from base64 import b64encode
from pathlib import Path

import pytest

from tests.lab import pods
from tests.lab.lab import Lab
from tests.lab.machine import FAR, LEGACY
from tests.lab.recorded import check_recorded
from tests.lab.restricted import check_restricted
from tests.launcher.kernels import boot_sector

MACHINE = LEGACY

#: What root does once, and then a user: docs/own-machine.md.
_OWN_MACHINE = """
cd /tmp
echo {image} | base64 -d > disk.img
truncate --size=1M disk.img
mkdir -m 700 own
chown 107 own disk.img
cat > own.yaml <<END
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {{guest: 64Mi}}
    cpu: {{model: qemu64}}
    devices:
      autoattachPodInterface: false
      gpus: [{{name: gpu, deviceName: example.com/other-name}}]
      disks: [{{name: system, disk: {{bus: virtio}}}}]
  volumes: [{{name: system, persistentVolumeClaim: {{claimName: system}}}}]
END
as_user="setpriv --reuid=107 --regid=107 --clear-groups"
export HOME=/tmp/own XDG_RUNTIME_DIR=/tmp/own
card=$PCI_RESOURCE_EXAMPLE_COM_CARD
unset PCI_RESOURCE_EXAMPLE_COM_CARD
launcher() {{
    command=$1
    shift
    set -- gpu-launcher "$command" own.yaml --gpu "$card" --disk system=disk.img --emulation "$@"
    exec $as_user "$@"
}}
(launcher check) || echo "check $?"
chown 107 /dev/vfio/[0-9]*
prlimit --pid $$ --memlock=8388608:8388608
(launcher check) || echo "check $?"
prlimit --pid $$ --memlock=unlimited
(launcher run) > run.log 2>&1 &
until grep -e '-> guest .*1$' run.log || [ ! -e /proc/$! ]; do sleep 1; done
{{ for second in 1 2 3 4 5 6 7 8 9; do echo; sleep 1; done; }} |
    $as_user timeout 60 gpu-launcher ctl console || echo "console $?"
$as_user sh -c "kill $!"
wait $! || echo "run $?"
cat run.log
"""


def test_the_kernel_has_groups_and_no_device_nodes(lab: Lab) -> None:
    assert "devices" not in lab.node.sh("ls /dev/vfio").split()
    assert lab.node.sh("ls /dev/iommu || true").strip().endswith("No such file or directory")


def test_the_recorded_machine_is_this_one(lab: Lab, plugin: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    check_recorded(lab, plugin, tmp_path, pytestconfig)


def test_without_a_cluster_a_user_gives_a_card_by_its_address_once_root_has_done_its_part(
    lab: Lab, plugin: str
) -> None:
    """In a pod that has a card and no launcher; nothing of what `pod` and the plugin say of the VM is used."""
    image = b64encode(boot_sector(b"The guest on the serial port\r\n")).decode()
    with lab.holder("own", 1):
        script = _OWN_MACHINE.format(image=image, name="own")
        said = lab.cluster.kubectl("exec", "own", "--", "bash", "-c", script, seconds=lab.box.patience.allowed(600))
    assert "cannot be opened: Permission denied\n  give it to the user that starts the VM: sudo chown $USER" in said
    assert "lock the guest's memory: 1088 MiB with libvirt's reserve, and this user may lock 8 MiB" in said
    assert said.count("\ncheck 4\n") == 2
    assert "The guest on the serial port" in said
    assert f"ua-gpu-gpu: host {FAR}.0 -> guest 0000:01:00.0" in said or "ua-gpu-gpu: host 0000:01:00.0 ->" in said
    assert said.count("-> guest 0000:01:00.1") >= 1
    assert said.endswith("INFO default_own has ended: as requested\n")


def test_a_vm_starts_with_cards_by_their_groups_nodes_in_a_restricted_namespace(lab: Lab, plugin: str) -> None:
    """By the device plugin, with a disk in a claim and a network; as its user from its first instruction. The last
    test: the runtime has no memlock limit from here on."""
    lab.prepare_runtime(gives_devices=True)
    lab.make_claim("data", "a writable claim")
    lab.wait_for_cards(2)
    links = lab.node.sh("for card in 01 41; do readlink /sys/bus/pci/devices/0000:$card:00.0/iommu_group; done")
    groups = [link.rpartition("/")[2] for link in links.split()]
    # The guest is still booting when it is asked to go, and does not listen.
    with lab.vm("first", 2, grace=1, level="restricted", more=pods.DISK_AND_NETWORK) as log:
        assert f"ua-gpu-gpu2: host {FAR}.0 -> guest 0000:02:00.0" in log
        assert lab.cluster.kubectl("exec", "first", "--", "ls", "/dev/vfio").split() == sorted([*groups, "vfio"])
        check_restricted(lab, "first")
