from pathlib import Path

from launcher.vm.volumes.guest import from_the_start
from tests.launcher.vm.volumes.pods import vmi_with


def test_a_hotpluggable_volume_is_there_from_the_start_and_that_is_said(tmp_path: Path) -> None:
    vmi = vmi_with(
        tmp_path,
        "{name: root, persistentVolumeClaim: {claimName: a, hotpluggable: false}}",
        "{name: more, persistentVolumeClaim: {claimName: b, hotpluggable: true}}",
        "{name: medium, dataVolume: {name: c, hotpluggable: true}}",
    )
    assert [disk.name for disk in vmi.spec.disks] == ["root", "more", "medium"]
    assert [str(finding) for finding in from_the_start(vmi.spec.volumes)] == [
        f"spec.volumes[{index}].{kind}.hotpluggable: the guest has the volume {name!r} from its start to its end: "
        "there is no hotplug; leave it out, and to take the volume away stop the VM and change its manifest"
        for index, kind, name in ((1, "persistentVolumeClaim", "more"), (2, "dataVolume", "medium"))
    ]
