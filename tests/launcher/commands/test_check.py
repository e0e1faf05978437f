"""`gpu-launcher check`, and `run` before it starts anything: all that is wrong with a pod at once."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.pipeline.pod import Pod
from launcher.pipeline.start import start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.runtime.embedded import DEFAULT_URI
from launcher.vm import paths
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS
from program.finding import Finding
from program.problem import Severity
from tests.breaking import Break, breaks, broken
from tests.conftest import Command, Machine
from tests.kernel import bind, make_nodes
from tests.launcher.vm.trees import vmi, write
from tests.launcher.vms import RTX_2060_VARIABLE, RTX_3090, RTX_3090_VARIABLE, read_manifest, vmi_text
from tests.processes import FIXTURES

ONE_GPU = FIXTURES / "vms" / "one-gpu.yaml"


def test_a_vm_that_can_start_leaves_nothing_to_say(gpu_launcher: Command, tmp_path: Path) -> None:
    """On another libvirt, since this machine may have no KVM and no QEMU."""
    (tmp_path / "vm.yaml").write_text(vmi_text())
    result = gpu_launcher("check", "--vm", tmp_path / "vm.yaml", "--connect", "test:///default")
    assert (result.stdout, result.stderr, result.returncode) == ("Errors: 0, warnings: 0.\n", "", 0)


def test_what_is_left_over_is_a_warning_and_3(gpu_launcher: Command, tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(vmi_text())
    flags = ("check", "--vm", tmp_path / "vm.yaml", "--connect", "test:///default", "--json")
    result = gpu_launcher(*flags, env={RTX_3090_VARIABLE: "0000:01:00.0"})
    (found,) = json.loads(result.stdout)["findings"]
    assert (found["severity"], found["subject"], result.returncode) == ("warning", RTX_3090_VARIABLE, 3)
    assert found["wrong"].startswith("has 0000:01:00.0 left over")


def test_errors_are_all_said_and_4(gpu_launcher: Command, copied_machine: Machine, tmp_path: Path) -> None:
    """Both cards' at once; and nothing is started, so that libvirt need not be there."""
    sys = copied_machine("two-rtx-3090")
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    bind(sys, "0000:e1:00.0", "nvidia")
    exhausted = "3 entries draw on its 2 (0000:01:00.0, 0000:e1:00.0)"
    offender = "0000:01:00.1 (audio) is bound to snd_hda_intel"
    (tmp_path / "vm.yaml").write_text(vmi_text(gpus=[("a", RTX_3090), ("b", RTX_3090), ("c", RTX_3090)]))
    result = gpu_launcher(
        *("check", "--vm", tmp_path / "vm.yaml", "--connect", "test:///default", "--sysfs", sys),
        env={RTX_3090_VARIABLE: "0000:01:00.0,0000:e1:00.0"},
    )
    errors = [line.split(": ", 2)[1:] for line in result.stdout.splitlines() if line.startswith("error: ")]
    assert errors == [
        ["gpu 'c'", f"asks for {RTX_3090}, but {RTX_3090_VARIABLE} is exhausted: {exhausted}"],
        ["gpu 'a'", f"0000:01:00.0 (VGA, 10de:2204) is in group 11, which is not viable: {offender}"],
        ["gpu 'b'", "0000:e1:00.0 (VGA, 10de:2204) is bound to nvidia"],
    ]
    assert (result.stderr, result.returncode) == ("", 4)


def test_a_libvirt_that_cannot_be_reached_is_a_finding(gpu_launcher: Command, tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(vmi_text())
    uri = f"qemu+unix:///system?socket={tmp_path}/nobody"
    result = gpu_launcher("check", "--vm", tmp_path / "vm.yaml", "--connect", uri)
    assert "error: libvirt: cannot be reached at qemu+unix" in result.stdout
    assert result.returncode == 4


def test_a_machine_that_qemu_has_not_is_an_error_and_nothing_is_left(
    gpu_launcher: Command, known_qemu: Path, short_dir: Path
) -> None:
    """It was: Errors: 0, warnings: 0."""
    vm, root = short_dir / "vm.yaml", short_dir / "root"
    vm.write_text(vmi_text(domain="    machine: {type: pc-q35-rhel9.4.0}\n"))
    shutil.copytree(known_qemu, root / "cache")
    before = sorted(short_dir.rglob("*"))
    flags = ("--connect", f"qemu:///embed?root={root}", "--emulation")
    result = gpu_launcher("check", vm, *flags, env={"PATH": os.environ["PATH"], "TMPDIR": str(short_dir)})
    assert re.search(
        rf"^error: {vm}:10: spec\.domain\.machine\.type: pc-q35-rhel9\.4\.0 is no machine of QEMU [\d.]+, "
        r"which is here\n"
        r"  write the annotation gpu-launcher\.dev/machine: nearest, ",
        result.stdout,
        re.MULTILINE,
    )
    assert (result.stderr, result.returncode) == ("", 4)
    assert sorted(short_dir.rglob("*")) == before


def test_without_qemu_it_is_said_what_was_not_looked_at(gpu_launcher: Command, tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(vmi_text())
    flags = ("--connect", f"qemu:///embed?root={tmp_path}/root", "--emulation")
    result = gpu_launcher("check", tmp_path / "vm.yaml", *flags, env={"PATH": "/nowhere"})
    assert "error: qemu-system-x86_64: is not there" in result.stdout
    assert (
        "note: machine, CPU model and KVM: were not looked at: there is no QEMU here\n"
        "  check it in the pod, or with its image\n"
    ) in result.stdout


def test_a_manifest_that_is_wrong_is_2_as_everywhere(gpu_launcher: Command, tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(vmi_text().replace("1Gi", "much"))
    result = gpu_launcher("check", "--vm", tmp_path / "vm.yaml")
    assert (result.stdout, result.stderr.count("\n"), result.returncode) == ("", 1, 2)


def test_run_says_each_thing_that_keeps_it_from_starting_and_what_it_does_not_mind(
    gpu_launcher: Command, copied_machine: Machine
) -> None:
    sys = copied_machine("two-rtx-3090")
    bind(sys, "0000:01:00.0", "nvidia")
    bind(sys, "0000:e1:00.0", "nvidia")
    two_gpus = FIXTURES / "vms" / "two-gpus.yaml"
    result = gpu_launcher(
        *("run", "--vm", two_gpus, "--connect", "test:///default", "--sysfs", sys),
        env={RTX_3090_VARIABLE: "0000:01:00.0,0000:e1:00.0", RTX_2060_VARIABLE: "0000:86:00.0"},
    )
    first, second, third, last = result.stderr.splitlines()
    assert first.startswith("ERROR gpu 'gpu1': 0000:01:00.0 (VGA, 10de:2204) is bound to nvidia; bind the whole card")
    assert second.startswith("ERROR gpu 'gpu2': 0000:e1:00.0 (VGA, 10de:2204) is bound to nvidia; ")
    assert third.startswith(f"WARNING {RTX_2060_VARIABLE}: has 0000:86:00.0 left over")
    assert last == "ERROR the VM: 2 things keep it from starting; the lines above say each, with its fix"
    assert result.returncode == 1


def test_run_starts_what_has_warnings_alone(gpu_launcher: Command, machine: Machine) -> None:
    """Its libvirt is not there, so that it comes no further."""
    result = gpu_launcher(
        *("run", "--vm", ONE_GPU, "--connect", "test:///nothing", "--sysfs", machine("rtx-2060")),
        env={RTX_2060_VARIABLE: "0000:01:00.0", RTX_3090_VARIABLE: "0000:86:00.0"},
    )
    warning, *_, last = result.stderr.splitlines()
    assert warning.startswith(f"WARNING {RTX_3090_VARIABLE}: has 0000:86:00.0 left over")
    assert last.startswith("ERROR libvirt: cannot be reached at test:///nothing: ")


def findings(vm: Path, sys: Path, environ: dict[str, str], place: ThisPod) -> tuple[Finding, ...]:
    return start_of(read_manifest(vm), Pod(environ={"PATH": "/nowhere", **environ}, sysfs=sys), place).all_findings


def test_a_container_with_nothing_in_it_lacks_everything_that_the_vm_has(
    copied_machine: Machine, tmp_path: Path
) -> None:
    """Each kind of finding once, and what the pod does not show is not said."""
    volumes = (
        "  volumes:\n"
        "  - {name: data, persistentVolumeClaim: {claimName: data}}\n"
        "  - {name: root, containerDisk: {image: debian}}\n"
        "  - {name: seed, cloudInitNoCloud: {secretRef: {name: seed}}}\n"
        "  - {name: scratch, emptyDisk: {capacity: 9000Ti}}\n"
        "  networks: [{name: default, pod: {}}]\n"
    )
    domain = (
        "    cpu: {cores: 4}\n"
        "    firmware:\n"
        "      bootloader: {efi: {secureBoot: false}}\n"
        "      kernelBoot: {container: {image: kernel, kernelPath: /vmlinuz}}\n"
    )
    devices = "      tpm: {}\n      interfaces: [{name: default, passt: {}, ports: [{port: 22}]}]\n"
    vmi(tmp_path, domain=domain, devices=devices, below=volumes, gpus=[("gpu1", RTX_3090)])
    sys = write(copied_machine("two-rtx-3090"), {"fs/cgroup/memory.max": "1048576", "fs/cgroup/cpu.max": "1 1"})
    empty = tmp_path / "empty"
    empty.mkdir()
    place = ThisPod(uri=DEFAULT_URI, root=empty, dev=empty, proc=empty)
    found = findings(tmp_path / "vm.yaml", sys, {RTX_3090_VARIABLE: "0000:01:00.0"}, place)
    # This machine may let us raise it.
    subjects = {finding.problem.subject for finding in found} - {"RLIMIT_MEMLOCK"}
    assert subjects == {
        f"{empty}/kvm",
        "/dev/vfio/vfio",
        "gpu 'gpu1'",
        "the container's memory limit",
        "the container's CPU limit",
        "firmware",
        *("qemu-system-x86_64", "qemu-img", "bsdtar", "swtpm", "swtpm_setup", "passt"),
        *("the volume 'data'", "the volume 'root'", "the volume 'seed'"),
        "firmware.kernelBoot",
        str(empty),
    }
    assert all(finding.problem.fix for finding in found)


def test_what_the_contents_of_a_volume_lack_is_found_too(machine: Machine, tmp_path: Path) -> None:
    disks = f"{paths.image_volume('root')}/disk"
    root = write(tmp_path / "root", {f"{disks}/a": bytes(512), f"{disks}/b": bytes(512)})
    vmi(tmp_path, below="  volumes: [{name: root, containerDisk: {image: debian}}]\n")
    place = ThisPod(uri="qemu:///system", root=root)
    (found,) = findings(tmp_path / "vm.yaml", machine("rtx-2060"), {}, place)
    assert str(found) == (
        f"the volume 'root': its image has several files in {root}{disks}: a, b; name the disk in containerDisk.path"
    )


def test_a_start_that_is_cleared_is_what_the_domain_is_made_of(machine: Machine, tmp_path: Path) -> None:
    dev = make_nodes(machine("rtx-2060"), tmp_path / "dev")
    pod = Pod(environ={RTX_2060_VARIABLE: "0000:01:00.0"}, sysfs=machine("rtx-2060"))
    start = start_of(read_manifest(ONE_GPU), pod, ThisPod(uri="test:///default", dev=dev))
    assert start.all_findings == ()
    assert start.layout is not None
    assert (len(start.cards), len(start.layout.seats), start.facts.kvm) == (1, 1, True)


PATHS = [
    *(
        f"{DEVICES}/0000:01:00.{number}{part}"
        for number in range(2)
        for part in ("", "/uevent", "/iommu_group", "/driver")
    ),
    *(f"{DEVICES}/0000:01:00.0/{part}" for part in ("resource", "numa_node")),
    *(f"{IOMMU_GROUPS}/11{part}" for part in ("", "/devices", "/devices/0000:01:00.1")),
    *("fs/cgroup/memory.max", "fs/cgroup/cpu.max", "kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
    *("devices/system/node", "devices/system/cpu", "fs/cgroup/cpuset.cpus.effective"),
]


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys = tmp_path_factory.mktemp("breakable") / "sys"
    shutil.copytree(FIXTURES / "sysfs" / "two-rtx-3090", sys, symlinks=True)
    return write(
        sys, {"fs/cgroup/cpuset.cpus.effective": "0-7", "kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "9"}
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=breaks(PATHS),
    value=st.sampled_from(["0000:01:00.0", "0000:01:00.1", "0000:e1:00.0", "", "x", "0000:86:00.0"]),
)
def test_whatever_is_broken_in_sysfs_every_finding_has_a_fix(breakable: Path, found: list[Break], value: str) -> None:
    vm = breakable.parent / "vm.yaml"
    cpus = "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n"
    vm.write_text(
        vmi_text(gpus=[("gpu1", RTX_3090)], domain=cpus).replace(
            "{guest: 1Gi}", "{guest: 1Gi, hugepages: {pageSize: 2Mi}}"
        )
    )
    place = ThisPod(uri=DEFAULT_URI, emulation=True, root=breakable.parent / "root", dev=breakable.parent, proc=None)
    with broken(breakable, found):
        told = findings(vm, breakable, {RTX_3090_VARIABLE: value}, place)
    assert [finding for finding in told if not all(finding.problem)] == []
    assert any(finding.severity is Severity.ERROR for finding in told), "its nodes are not there"
