"""A card by its address, as on a user's own machine (docs/own-machine.md), in a pod that has a card and no launcher."""

from base64 import b64encode

from tests.lab.lab import Lab
from tests.lab.machine import FAR
from tests.launcher.kernels import boot_sector

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
      logSerialConsole: true
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
prlimit --pid $$ --memlock=8388608:8388608
(launcher check) || echo "check $?"
chown 107 /dev/vfio/[0-9]*
prlimit --pid $$ --memlock=unlimited
(launcher run) > run.log 2>&1 &
until grep -e '-> guest .*1$' run.log || [ ! -e /proc/$! ]; do sleep 1; done
until $as_user grep -rs guest --include=virt-serial0-log own || [ ! -e /proc/$! ]; do sleep 1; done
$as_user sh -c "kill $!"
wait $! || echo "run $?"
export XDG_STATE_HOME=/tmp/own
prlimit --pid $$ --memlock=8388608:8388608
as_user=
(launcher run --user=107) > as-root.log 2>&1 &
until grep -e '-> guest .*1$' as-root.log || [ ! -e /proc/$! ]; do sleep 1; done
for process in /proc/[0-9]*; do
    ! grep -sq '^Name:.*qemu-system' $process/status || grep -e ^Uid -e ^Groups -e ^CapEff $process/status
done
setpriv --reuid=107 --regid=107 --clear-groups sh -c "kill $!"
wait $! || echo "run as root $?"
cat as-root.log run.log
"""


def check_by_address(lab: Lab) -> None:
    """That a user without root gives a VM the card once root has done its part, and is told of all of it before; and
    that root, which may make no mounts in this container and so lends nothing, gives it the card as that user.

    Nothing of what `pod` and the plugin say of the VM is used.
    """
    image = b64encode(boot_sector(b"The guest on the serial port\r\n")).decode()
    with lab.holder("own", 1):
        script = _OWN_MACHINE.format(image=image, name="own")
        said = lab.cluster.kubectl("exec", "own", "--", "bash", "-c", script, seconds=lab.box.patience.allowed(600))
    assert "cannot be opened: Permission denied\n  give it to the user that starts the VM: sudo chown $USER" in said
    assert "lock the guest's memory: 1088 MiB with libvirt's reserve, and this user may lock 8 MiB" in said
    assert said.count("\ncheck 4\n") == 1
    assert "The guest on the serial port" in said
    assert "\nUid:\t107\t107\t107\t107\nGroups:\t \nCapEff:\t0000000000000000\n" in said
    assert "INFO the VM runs as the user qemu; --user names another\n" in said
    assert f"ua-gpu-gpu: host {FAR}.0 -> guest 0000:01:00.0" in said or "ua-gpu-gpu: host 0000:01:00.0 ->" in said
    assert said.count("-> guest 0000:01:00.1") >= 2
    assert said.endswith("INFO default_own has ended: as requested\n")
