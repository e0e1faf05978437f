"""Instance types and preferences: each row of docs/instancetypes.md is a test, and so is each rule beside them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.manifest.inputs import TypeObject, names_of
from launcher.manifest.instancetypes.draft import value_at
from launcher.manifest.instancetypes.expansion import FILE, Expanded, common
from launcher.manifest.instancetypes.expansion import expand as expand_vm
from launcher.manifest.instancetypes.kinds import Instancetype, InstancetypeSpec, Preference, PreferenceSpec
from launcher.manifest.parser import checked, read_vm
from program.errors import UserError
from tests import common_instancetypes
from tests.launcher.test_fields import walk
from tests.launcher.vms import read_manifest, without_lines
from tests.processes import FIXTURES, ROOT

TABLE = (ROOT / "docs" / "instancetypes.md").read_text()
API = "instancetype.kubevirt.io/v1beta1"

Document = dict[str, Any]


def path_of(dotted: str) -> tuple[str | int, ...]:
    """`disks[0].name` as a path."""
    parts = re.findall(r"\w+", dotted)
    return tuple(int(part) if part.isdigit() else part for part in parts)


def at(dotted: str, value: Any) -> Any:
    """A document that says nothing but this."""
    for part in reversed(path_of(dotted)):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: merged(one.get(key), other.get(key)) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(a, b) for a, b in zip(one, other, strict=True)]
    return one if other is None else other


def vm(spec: Document | None = None, **own: Any) -> Document:
    """A VirtualMachine with this spec.template.spec, which names both."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm"},
        "spec": {
            "instancetype": {"name": "medium"},
            "preference": {"name": "likes"},
            "template": {"spec": merged({"domain": {"devices": {}}}, spec or {})},
            **own,
        },
    }


def instancetype(spec: Document | None = None) -> Document:
    least = {"cpu": {"guest": 4}, "memory": {"guest": "2Gi"}}
    kind = "VirtualMachineClusterInstancetype"
    return {"apiVersion": API, "kind": kind, "metadata": {"name": "medium"}, "spec": merged(least, spec or {})}


def preference(spec: Document | None = None) -> Document:
    kind = "VirtualMachineClusterPreference"
    return {"apiVersion": API, "kind": kind, "metadata": {"name": "likes"}, "spec": spec or {}}


def expand(vm: Document, *types: Document) -> Expanded:
    beside = [TypeObject(found, "vm.yaml") for found in types]
    return expand_vm(vm, {}, beside, "vm.yaml: ", checked)


def spec_of(found: Expanded) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = found.document["spec"]["template"]["spec"]
    return spec


# Conflicts: what the VM says, and what its instance type says.
CONFLICTS: Mapping[tuple[str, str], tuple[Any, Any]] = {
    ("domain.cpu.sockets", "cpu.guest"): (1, 4),
    ("domain.cpu.cores", "cpu.guest"): (4, 4),
    ("domain.cpu.threads", "cpu.guest"): (2, 4),
    ("domain.resources.requests.cpu", "cpu.guest"): ("100m", 4),
    ("domain.resources.limits.cpu", "cpu.guest"): ("2", 4),
    ("domain.memory.guest", "memory.guest"): ("1Gi", "2Gi"),
    ("domain.resources.requests.memory", "memory.guest"): ("1Gi", "2Gi"),
    ("domain.resources.limits.memory", "memory.guest"): ("4Gi", "2Gi"),
    ("domain.cpu.model", "cpu.model"): ("host-model", "host-passthrough"),
    ("domain.cpu.dedicatedCpuPlacement", "cpu.dedicatedCPUPlacement"): (True, False),
    ("domain.cpu.isolateEmulatorThread", "cpu.isolateEmulatorThread"): (True, True),
    ("domain.cpu.numa", "cpu.numa"): ({}, {"guestMappingPassthrough": {}}),
    ("domain.cpu.realtime", "cpu.realtime"): ({}, {"mask": "0-1"}),
    ("domain.memory.hugepages", "memory.hugepages"): ({"pageSize": "2Mi"}, {"pageSize": "1Gi"}),
    ("domain.memory.maxGuest", "memory.maxGuest"): ("4Gi", "8Gi"),
    ("domain.devices.gpus", "gpus"): (
        [{"name": "a", "deviceName": "x.com/A"}],
        [{"name": "b", "deviceName": "x.com/B"}],
    ),
    ("domain.devices.hostDevices", "hostDevices"): (
        [{"name": "a", "deviceName": "x.com/A"}],
        [{"name": "b", "deviceName": "x.com/B"}],
    ),
    ("domain.ioThreadsPolicy", "ioThreadsPolicy"): ("auto", "shared"),
    ("domain.ioThreads.supplementalPoolThreadCount", "ioThreads.supplementalPoolThreadCount"): (2, 4),
    ("domain.launchSecurity", "launchSecurity"): ({"sev": {}}, {"snp": {}}),
    ("nodeSelector", "nodeSelector"): ({"a": "b"}, {"c": "d"}),
    ("schedulerName", "schedulerName"): ("mine", "yours"),
}

#: The field of the VM that the instance type's own value is in, where the VM says nothing.
FILLED_IN = {field: source for field, source in CONFLICTS if source not in ("cpu.guest", "memory.guest")}


def test_both_kinds_have_the_fields_of_kubevirts() -> None:
    kinds = (("instancetype", InstancetypeSpec), ("preference", PreferenceSpec))
    ours = {path for name, kind in kinds for path, _ in walk(kind, name)}
    lines = (FIXTURES / "kubevirt" / "instancetype-fields.txt").read_text().splitlines()
    assert sorted(ours) == sorted(line for line in lines if not line.startswith("#"))


def test_the_table_has_every_conflict() -> None:
    conflicts, _, _ = TABLE.partition("What a preference")
    assert re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", conflicts, re.MULTILINE) == list(CONFLICTS)


@pytest.mark.parametrize(("field", "source"), CONFLICTS)
def test_a_vm_that_says_what_its_instance_type_says_is_refused_by_both_paths(field: str, source: str) -> None:
    ours, theirs = CONFLICTS[field, source]
    with pytest.raises(UserError) as error:
        expand(vm(at(field, ours)), instancetype(at(source, theirs)), preference())
    (problem,) = error.value.problems
    assert problem.subject == f"vm.yaml: spec.template.spec.{field}"
    assert f"and spec.{source} of VirtualMachineClusterInstancetype medium is " in problem.wrong
    assert problem.fix == "leave it out of the VM, whose instance type says it"


@pytest.mark.parametrize("field", FILLED_IN)
def test_what_the_vm_does_not_say_is_its_instance_types(field: str) -> None:
    source = FILLED_IN[field]
    theirs = CONFLICTS[field, source][1]
    found = expand(vm(), instancetype(at(source, theirs)), preference())
    assert value_at(spec_of(found), path_of(field)) == theirs
    origin = f"spec.{source} of VirtualMachineClusterInstancetype medium"
    assert found.origins["spec", "template", "spec", *path_of(field)] == origin


@pytest.mark.parametrize("nothing", [0, None])
def test_no_cpus_say_nothing(nothing: int | None) -> None:
    found = expand(vm(at("domain.cpu.sockets", nothing)), instancetype(), preference())
    assert spec_of(found)["domain"]["cpu"] == {"sockets": 4, "cores": 1, "threads": 1}


def test_all_conflicts_are_said_at_once() -> None:
    said = merged(at("domain.cpu.cores", 2), at("domain.memory.guest", "1Gi"))
    with pytest.raises(UserError) as error:
        expand(vm(said), instancetype(), preference())
    assert [problem.subject.rpartition(".spec.")[2] for problem in error.value.problems] == [
        "domain.cpu.cores",
        "domain.memory.guest",
    ]


def test_of_many_conflicts_the_first_are_said_and_how_many_more() -> None:
    mine = vm()
    mine["spec"]["template"]["metadata"] = {"annotations": {f"a{number}": "mine" for number in range(100)}}
    theirs = {"annotations": {f"a{number}": "theirs" for number in range(100)}}
    with pytest.raises(UserError) as error:
        expand(mine, instancetype(theirs), preference())
    assert (len(error.value.lines), error.value.lines[-1]) == (21, "and 80 more")


def test_annotations_of_both_conflict_where_they_differ() -> None:
    theirs = instancetype({"annotations": {"a": "1", "b": "2"}})
    mine = vm()
    mine["spec"]["template"]["metadata"] = {"annotations": {"a": "1"}}
    found = expand(mine, theirs, preference({"annotations": {"b": "3", "c": "4"}}))
    assert found.document["spec"]["template"]["metadata"]["annotations"] == {"a": "1", "b": "2", "c": "4"}
    mine["spec"]["template"]["metadata"] = {"annotations": {"a": "0"}}
    with pytest.raises(UserError, match=r"metadata\.annotations\.a: is '0', and spec\.annotations\.a of Virt"):
        expand(mine, theirs, preference())


# Preferences: the VM's field, what is preferred, what the VM says instead, and what the VM has for it to be asked.
FILLS: Mapping[str, tuple[str, Any, Any, Document]] = {
    **{
        f"devices.preferredAutoattach{what}": (f"domain.devices.autoattach{what}", False, True, {})
        for what in ("GraphicsDevice", "InputDevice", "MemBalloon", "PodInterface", "SerialConsole")
    },
    "devices.preferredBlockMultiQueue": ("domain.devices.blockMultiQueue", True, False, {}),
    "devices.preferredDisableHotplug": ("domain.devices.disableHotplug", True, False, {}),
    "devices.preferredNetworkInterfaceMultiQueue": ("domain.devices.networkInterfaceMultiqueue", True, False, {}),
    "devices.preferredRng": ("domain.devices.rng", {}, {"x": 1}, {}),
    "devices.preferredTPM": ("domain.devices.tpm", {"persistent": True}, {"enabled": False}, {}),
    "devices.preferredUseVirtioTransitional": ("domain.devices.useVirtioTransitional", True, False, {}),
    "devices.preferredVideoType": ("domain.devices.video.type", "virtio", "vga", {}),
    "features.preferredAcpi": ("domain.features.acpi", {}, {"enabled": False}, {}),
    "features.preferredApic": ("domain.features.apic", {"endOfInterrupt": True}, {}, {}),
    "features.preferredKvm": ("domain.features.kvm", {"hidden": True}, {"hidden": False}, {}),
    "features.preferredPvspinlock": ("domain.features.pvspinlock", {"enabled": False}, {}, {}),
    "features.preferredSmm": ("domain.features.smm", {}, {"enabled": False}, {}),
    "machine.preferredMachineType": ("domain.machine.type", "pc-q35-rhel9.6.0", "q35", {}),
    "clock.preferredTimer": ("domain.clock.timer", {"hyperv": {}}, {"hpet": {"present": False}}, {}),
    "preferredLaunchSecurity": ("domain.launchSecurity", {"snp": {}}, {"sev": {}}, {}),
    "preferredArchitecture": ("architecture", "arm64", "amd64", {}),
    "preferredSubdomain": ("subdomain", "theirs", "mine", {}),
    "preferredTerminationGracePeriodSeconds": ("terminationGracePeriodSeconds", 3600, 0, {}),
    "features.preferredHyperv": (
        "domain.features.hyperv",
        {"relaxed": {}, "spinlocks": {"spinlocks": 8191}},
        {"relaxed": {"enabled": False}, "spinlocks": {}},
        {},
    ),
    "cpu.preferredCPUFeatures": (
        "domain.cpu.features",
        [{"name": "vmx", "policy": "require"}],
        [{"name": "vmx", "policy": "disable"}],
        {},
    ),
    "clock.preferredClockOffset": ("domain.clock.utc", {"utc": {"offsetSeconds": 60}}, {"offsetSeconds": 0}, {}),
    "firmware.preferredUseBios": ("domain.firmware.bootloader.bios", True, {"useSerial": True}, {}),
    "firmware.preferredUseBiosSerial": (
        "domain.firmware.bootloader.bios.useSerial",
        True,
        False,
        at("domain.firmware.bootloader.bios", {}),
    ),
    "firmware.preferredEfi": ("domain.firmware.bootloader.efi", {"persistent": True}, {"secureBoot": False}, {}),
    "firmware.preferredUseEfi": ("domain.firmware.bootloader.efi", True, {"secureBoot": False}, {}),
    "firmware.preferredUseSecureBoot": (
        "domain.firmware.bootloader.efi.secureBoot",
        False,
        True,
        at("domain.firmware.bootloader.efi", {}),
    ),
    "devices.preferredSoundModel": ("domain.devices.sound.model", "ac97", "ich9", at("domain.devices.sound.name", "s")),
    "devices.preferredDiskBus": ("domain.devices.disks[0].disk.bus", "virtio", "sata", {}),
    "devices.preferredDiskBlockSize": (
        "domain.devices.disks[0].blockSize",
        {"matchVolume": {}},
        {"custom": {"logical": 512, "physical": 4096}},
        {},
    ),
    "devices.preferredDiskCache": ("domain.devices.disks[0].cache", "writeback", "none", {}),
    "devices.preferredDiskIO": ("domain.devices.disks[0].io", "threads", "native", {}),
    "devices.preferredCdromBus": (
        "domain.devices.disks[0].cdrom.bus",
        "scsi",
        "sata",
        at("domain.devices.disks[0].cdrom", {}),
    ),
    "devices.preferredLunBus": (
        "domain.devices.disks[0].lun.bus",
        "scsi",
        "virtio",
        at("domain.devices.disks[0].lun", {}),
    ),
    "devices.preferredDiskDedicatedIoThread": (
        "domain.devices.disks[0].dedicatedIOThread",
        True,
        False,
        at("domain.devices.disks[0].disk.bus", "virtio"),
    ),
    "devices.preferredInputBus": ("domain.devices.inputs[0].bus", "virtio", "usb", {}),
    "devices.preferredInputType": ("domain.devices.inputs[0].type", "tablet", "keyboard", {}),
    "devices.preferredInterfaceModel": ("domain.devices.interfaces[0].model", "e1000e", "virtio", {}),
    "devices.preferredPanicDeviceModel": ("domain.devices.panicDevices[0].model", "isa", "pvpanic", {}),
    "devices.preferredVirtualGPUOptions": (
        "domain.devices.gpus[0].virtualGPUOptions",
        {"display": {"enabled": False}},
        {},
        {},
    ),
    "devices.preferredInterfaceMasquerade": (
        "domain.devices.interfaces[0].masquerade",
        {},
        {"x": 1},
        merged(at("domain.devices.interfaces[0].name", "net"), {"networks": [{"name": "net", "pod": {}}]}),
    ),
}
#: Rows with tests of their own.
BESIDE = ("volumes.preferredStorageClassName", "annotations")

LISTS = {
    "disks": "name: disk",
    "inputs": "name: input",
    "interfaces": "name: net",
    "gpus": "name: gpu, deviceName: x.com/G",
}


def asked(field: str, has: Document) -> Document:
    """A spec with all that a preference for the field needs to be asked: the list's one item, and what it has."""
    kind = field.removeprefix("domain.devices.").partition("[")[0]
    item = yaml.safe_load(f"[{{{LISTS[kind]}}}]") if kind in LISTS else None
    return merged(has, {"domain": {"devices": {kind: item}}}) if item else has


def test_the_table_has_every_preference() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .*\|$", TABLE.partition("What a preference")[2], re.MULTILINE)
    assert rows == [*FILLS, *BESIDE]


@pytest.mark.parametrize("source", FILLS)
def test_a_preference_fills_in_what_is_not_said(source: str) -> None:
    field, preferred, _, has = FILLS[source]
    found = expand(vm(asked(field, has)), instancetype(), preference(at(source, preferred)))
    expected = {"firmware.preferredUseBios": {}, "firmware.preferredUseEfi": {}}.get(source, preferred)
    if source == "clock.preferredClockOffset":
        expected = preferred["utc"]
    assert value_at(spec_of(found), path_of(field)) == expected


@pytest.mark.parametrize("source", FILLS)
def test_what_is_said_counts_and_no_preference(source: str) -> None:
    field, preferred, said, has = FILLS[source]
    spec = merged(asked(field, has), at(field, said))
    found = expand(vm(spec), instancetype(), preference(at(source, preferred)))
    assert value_at(spec_of(found), path_of(field)) == said


def test_launch_security_is_preferred_by_kubevirts_name_alone() -> None:
    with pytest.raises(UserError) as error:
        expand(vm(), instancetype(), preference({"launchSecurity": {"sev": {}}}))
    (problem,) = error.value.problems
    assert re.search("launchSecurity: not a field that .* known here: .*, preferredLaunchSecurity,", str(problem))


def test_an_instance_type_counts_before_a_preference() -> None:
    theirs = instancetype({"launchSecurity": {"snp": {}}})
    found = expand(vm(), theirs, preference({"preferredLaunchSecurity": {"sev": {}}}))
    assert spec_of(found)["domain"]["launchSecurity"] == {"snp": {}}


def test_no_hyperv_features_are_added_to_all_of_the_hosts() -> None:
    preferred = preference({"features": {"preferredHyperv": {"relaxed": {}}}})
    found = expand(vm(at("domain.features.hypervPassthrough", {"enabled": True})), instancetype(), preferred)
    assert "hyperv" not in spec_of(found)["domain"]["features"]


def test_efi_is_not_added_to_bios_nor_a_time_zone_to_an_offset() -> None:
    preferred = preference(
        {"firmware": {"preferredEfi": {}}, "clock": {"preferredClockOffset": {"timezone": "Asia/Tokyo"}}}
    )
    said = merged(at("domain.firmware.bootloader.bios", {}), at("domain.clock.utc", {}))
    domain = spec_of(expand(vm(said), instancetype(), preferred))["domain"]
    assert (domain["firmware"], domain["clock"]) == ({"bootloader": {"bios": {}}}, {"utc": {}})


def test_secure_boot_is_not_taken_from_the_older_field_where_there_is_the_newer() -> None:
    firmware = {"preferredEfi": {}, "preferredUseEfi": True, "preferredUseSecureBoot": False}
    found = expand(vm(), instancetype(), preference({"firmware": firmware}))
    assert spec_of(found)["domain"]["firmware"]["bootloader"] == {"efi": {}}


def test_a_dedicated_thread_is_for_a_disk_on_virtio_alone() -> None:
    preferred = preference({"devices": {"preferredDiskDedicatedIoThread": True, "preferredDiskBus": "virtio"}})
    said = {"domain": {"devices": {"disks": [{"name": "a"}, {"name": "b", "disk": {"bus": "sata"}}]}}}
    disks = spec_of(expand(vm(said), instancetype(), preferred))["domain"]["devices"]["disks"]
    assert [disk.get("dedicatedIOThread") for disk in disks] == [True, None]


def test_what_a_vm_has_by_default_is_as_preferred_too() -> None:
    devices = {
        "preferredAutoattachInputDevice": True,
        "preferredDiskBus": "virtio",
        "preferredInputBus": "virtio",
        "preferredInterfaceModel": "e1000e",
    }
    found = spec_of(expand(vm({"volumes": [{"name": "root"}]}), instancetype(), preference({"devices": devices})))
    assert found["domain"]["devices"]["disks"] == [{"name": "root", "disk": {"bus": "virtio"}}]
    assert found["domain"]["devices"]["inputs"] == [{"name": "default-0", "bus": "virtio"}]
    assert [interface["model"] for interface in found["domain"]["devices"]["interfaces"]] == ["e1000e"]
    assert found["networks"] == [{"name": "default", "pod": {}}]


def test_a_preferred_storage_class_is_that_of_data_volumes_without_one() -> None:
    templates = [{"spec": {"storage": {}}}, {"spec": {"pvc": {"storageClassName": "mine"}}}, {"spec": {}}]
    mine = vm(None, dataVolumeTemplates=templates)
    found = expand(mine, instancetype(), preference({"volumes": {"preferredStorageClassName": "fast"}}))
    assert found.document["spec"]["dataVolumeTemplates"] == [
        {"spec": {"storage": {"storageClassName": "fast"}}},
        {"spec": {"pvc": {"storageClassName": "mine"}}},
        {"spec": {}},
    ]


@pytest.mark.parametrize(
    ("vcpus", "cpu", "topology"),
    [
        (4, {}, (4, 1, 1)),
        (4, {"preferredCPUTopology": "any"}, (4, 1, 1)),
        (4, {"preferredCPUTopology": "preferCores"}, (1, 4, 1)),
        (4, {"preferredCPUTopology": "cores"}, (1, 4, 1)),
        (4, {"preferredCPUTopology": "threads"}, (1, 1, 4)),
        (8, {"preferredCPUTopology": "spread"}, (4, 2, 1)),
        (8, {"preferredCPUTopology": "preferSpread", "spreadOptions": {"ratio": 4}}, (2, 4, 1)),
        (8, {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}, (1, 4, 2)),
        (8, {"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads"}}, (2, 2, 2)),
        (1, {"preferredCPUTopology": "spread"}, (1, 1, 1)),
    ],
)
def test_what_the_vcpus_become(vcpus: int, cpu: Document, topology: tuple[int, int, int]) -> None:
    found = expand(vm(), instancetype({"cpu": {"guest": vcpus}}), preference({"cpu": cpu}))
    assert tuple(spec_of(found)["domain"]["cpu"].values()) == topology


def test_the_older_field_for_the_ratio_is_taken_too() -> None:
    likes = preference({"cpu": {"preferredCPUTopology": "spread"}, "preferSpreadSocketToCoreRatio": 4})
    found = expand(vm(), instancetype({"cpu": {"guest": 8}}), likes)
    assert spec_of(found)["domain"]["cpu"] == {"sockets": 2, "cores": 4, "threads": 1}


@pytest.mark.parametrize(
    ("options", "by"), [({}, 2), ({"across": "CoresThreads"}, 2), ({"across": "SocketsCoresThreads"}, 4)]
)
def test_vcpus_that_cannot_be_spread_are_refused(options: Document, by: int) -> None:
    likes = preference({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": options}})
    with pytest.raises(UserError) as error:
        expand(vm(), instancetype({"cpu": {"guest": 9}}), likes)
    assert str(error.value) == (
        f"vm.yaml: VirtualMachineClusterInstancetype medium: spec.cpu.guest: is 9, which is no multiple of the {by} "
        f"vCPUs by which the preference spreads them; expected a multiple of {by}, or another preference"
    )


def test_the_pod_asks_for_less_memory_where_the_type_overcommits() -> None:
    found = expand(vm(), instancetype({"memory": {"guest": "2Gi", "overcommitPercent": 15}}), preference())
    assert spec_of(found)["domain"]["resources"]["requests"]["memory"] == (2 << 30) * 85 // 100


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (instancetype({"cpu": {"guest": 0}}), "spec.cpu.guest: found 0; expected"),
        (
            instancetype({"cpu": {"cores": 4}}),
            "spec.cpu.cores: not a field that gpu-launcher knows; known here: guest, ",
        ),
        (instancetype({"gpus": [{"name": "a"}]}), "spec.gpus[0]: names no device; expected either deviceName"),
        (
            instancetype({"memory": {"overcommitPercent": 10, "hugepages": {"pageSize": "2Mi"}}}),
            "spec.memory: has both overcommitPercent and hugepages, which are all there; expected one of them",
        ),
        (preference({"cpu": {"preferredCPUTopology": "sideways"}}), "spec.cpu.preferredCPUTopology"),
        (
            preference(
                {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads", "ratio": 4}}}
            ),
            "spec: cpu.spreadOptions spreads over cores and threads with a ratio of 4; expected 2",
        ),
        (preference({"devices": {"preferredDiskBuss": "virtio"}}), "spec.devices.preferredDiskBuss: not a field"),
        ({**instancetype(), "apiVersion": "instancetype.kubevirt.io/v1alpha1"}, "apiVersion: found"),
    ],
)
def test_one_that_makes_no_sense_is_refused_by_its_own_path(document: Document, problem: str) -> None:
    other = preference() if document["kind"].endswith("Instancetype") else instancetype()
    with pytest.raises(UserError) as error:
        expand(vm(), document, other)
    name = document["metadata"]["name"]
    assert str(error.value).startswith(f"vm.yaml: {document['kind']} {name}: {problem}")


# From files.


def written(path: Path, *documents: Document) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def problem_of(path: Path, **flags: Path) -> str:
    with pytest.raises(UserError) as error:
        read_vm(path, types=flags)
    line = without_lines(str(error.value), path)
    assert "\n" not in line
    return line


def test_an_instance_type_brings_gpus_and_the_vm_is_what_both_make(tmp_path: Path) -> None:
    gpus = [{"name": "gpu0", "deviceName": "nvidia.com/A400"}]
    likes = preference({"firmware": {"preferredEfi": {"secureBoot": False}}})
    path = written(tmp_path / "vm.yaml", vm(), instancetype({"gpus": gpus}), likes)
    vmi = read_manifest(path)
    assert [(gpu.name, gpu.deviceName) for gpu in vmi.spec.domain.devices.gpus] == [("gpu0", "nvidia.com/A400")]
    assert (vmi.spec.domain.topology, vmi.spec.domain.guest_memory) == ((4, 1, 1), 2 << 30)
    assert vmi.spec.efi is not None


@pytest.mark.parametrize(
    "kind", ["VirtualMachineInstancetype", "virtualmachineinstancetypes", "virtualMachineInstancetype"]
)
def test_kinds_are_named_in_any_case_and_number(tmp_path: Path, kind: str) -> None:
    mine = vm()
    mine["spec"] = {**mine["spec"], "instancetype": {"kind": kind, "name": "medium"}, "preference": None}
    own = {**instancetype(), "kind": "VirtualMachineInstancetype"}
    assert read_manifest(written(tmp_path / "vm.yaml", own, mine)).spec.domain.vcpus == 4


def test_the_one_of_the_vms_own_namespace_counts(tmp_path: Path) -> None:
    named = {"kind": "VirtualMachineInstancetype", "name": "medium"}
    mine = vm(None, instancetype=named, preference=None)
    mine["metadata"]["namespace"] = "team"
    types = []
    for namespace, vcpus in (("other", 2), ("team", 8)):
        own = {**instancetype({"cpu": {"guest": vcpus}}), "kind": "VirtualMachineInstancetype"}
        types.append({**own, "metadata": {"name": "medium", "namespace": namespace}})
    path = written(tmp_path / "vm.yaml", mine, *types)
    assert read_manifest(path).spec.domain.vcpus == 8
    written(path, mine, types[0])
    assert "get it with `kubectl get -n team virtualmachineinstancetype medium -o yaml`" in problem_of(path)


def test_files_of_flags_hold_any_number_also_as_a_list(tmp_path: Path) -> None:
    path = written(tmp_path / "vm.yaml", vm())
    others = {**instancetype(), "metadata": {"name": "large"}}
    items = {"apiVersion": "v1", "kind": "List", "items": [others, instancetype()]}
    types = written(tmp_path / "types.yaml", items)
    likes = written(tmp_path / "likes.yaml", preference({"preferredSubdomain": "x"}))
    given = read_vm(path, types={"instancetype": types, "preference": likes})
    assert (given.instance.spec.domain.vcpus, given.instance.spec.subdomain) == (4, "x")
    assert [document["metadata"]["name"] for document in given.documents] == ["vm", "medium", "likes"]


def test_one_that_is_not_there_is_refused_with_the_command_that_gets_it(tmp_path: Path) -> None:
    path = written(tmp_path / "vm.yaml", vm())
    line = problem_of(path)
    assert line.startswith(
        f"{path}: spec.instancetype: names VirtualMachineClusterInstancetype medium, which is not here; get it with "
        "`kubectl get virtualmachineclusterinstancetype medium -o yaml`, and give that with --instancetype FILE"
    )
    assert f"{path}: spec.preference: names VirtualMachineClusterPreference likes, which is not here; get it" in line
    other = written(tmp_path / "types.yaml", {**instancetype(), "metadata": {"name": "large"}})
    assert (
        "which is not in the file of --instancetype: it has VirtualMachineClusterInstancetype large; get"
        in problem_of(path, instancetype=other)
    )


def test_one_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "vm.yaml", vm(), instancetype(), instancetype(), preference())
    assert f"names VirtualMachineClusterInstancetype medium, which is 2 times in {path}; leave one" in problem_of(path)


def test_a_flag_that_no_vm_asks_for_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "vm.yaml", vm(None, instancetype=None, preference=None))
    types = written(tmp_path / "types.yaml", instancetype())
    assert problem_of(path, instancetype=types).startswith(
        f"--instancetype {types}: the VM names none; write spec.inst"
    )


@pytest.mark.parametrize(
    ("matcher", "problem"),
    [
        ({}, "has neither name nor inferFromVolume; expected one of them"),
        ({"name": "a", "inferFromVolume": "root"}, "has both name and inferFromVolume; expected one of them"),
        ({"kind": "x", "inferFromVolume": "root"}, "has kind and inferFromVolume, which says the kind too"),
        (
            {"kind": "VirtualMachine", "name": "a"},
            "kind is 'VirtualMachine'; expected VirtualMachineClusterInstancetype",
        ),
        (
            {"inferFromVolume": "root"},
            "is inferred from the labels of volume 'root', which are in the cluster; look",
        ),
    ],
)
def test_what_names_none_is_refused(tmp_path: Path, matcher: Document, problem: str) -> None:
    path = written(tmp_path / "vm.yaml", vm(None, instancetype=matcher, preference=None))
    assert problem_of(path).startswith(f"{path}: spec.instancetype: {problem}")


def test_one_that_is_inferred_is_the_flags_or_none_where_failure_is_ignored(tmp_path: Path) -> None:
    inferred = {"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"}
    path = written(tmp_path / "vm.yaml", vm(at("domain.memory.guest", "1Gi"), instancetype=inferred, preference=None))
    given = read_vm(path)
    assert given.instance.spec.domain.vcpus == 1
    (note,) = given.notes
    assert note.startswith(f"{path}: spec.instancetype: is inferred from the labels of volume 'root'")
    written(path, vm(None, instancetype=inferred, preference=None))
    types = written(tmp_path / "types.yaml", instancetype())
    assert read_vm(path, types={"instancetype": types}).instance.spec.domain.vcpus == 4


def test_an_error_of_what_was_filled_in_says_where_it_is_from(tmp_path: Path) -> None:
    likes = preference({"features": {"preferredSmm": {"enabled": False}}})
    path = written(tmp_path / "vm.yaml", vm(at("domain.firmware.bootloader.efi", {})), instancetype(), likes)
    assert problem_of(path).startswith(
        f"{path}: spec.template.spec.domain.features.smm (spec.features.preferredSmm of "
        "VirtualMachineClusterPreference likes): is disabled, and secure boot needs it; "
    )


@pytest.mark.parametrize(
    ("spec", "named", "likes", "problem"),
    [
        (
            {},
            True,
            {"cpu": {"guest": 8}},
            "spec.instancetype: gives the guest 4 vCPUs, and spec.requirements.cpu.guest",
        ),
        ({}, True, {"memory": {"guest": "4Gi"}}, "spec.instancetype: gives the guest 2Gi of memory, and spec.requirem"),
        (
            at("domain.cpu.cores", 4),
            False,
            {"cpu": {"guest": 2}},
            "spec.template.spec.domain.cpu: gives the guest 1 sock",
        ),
        (
            at("domain.memory.guest", "1Gi"),
            False,
            {"memory": {"guest": "4Gi"}},
            "spec.template.spec.domain.memory: gives",
        ),
        ({}, True, {"architecture": "arm64"}, "spec.template.spec.architecture: is amd64, and spec.requirements.archi"),
    ],
)
def test_a_guest_without_what_its_preference_requires_is_refused(
    tmp_path: Path, spec: Document, named: bool, likes: Document, problem: str
) -> None:
    mine = vm(spec, **({} if named else {"instancetype": None}))
    path = written(tmp_path / "vm.yaml", mine, instancetype(), preference({"requirements": likes}))
    assert problem_of(path).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("topology", "spec"),
    [
        ({"preferredCPUTopology": "cores"}, {"cores": 4}),
        ({"preferredCPUTopology": "threads"}, {"threads": 4}),
        ({"preferredCPUTopology": "any"}, {"cores": 2, "sockets": 2}),
        ({"preferredCPUTopology": "spread"}, {"cores": 2, "sockets": 2}),
        ({"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}, {"cores": 2, "threads": 2}),
    ],
)
def test_a_vms_own_cpus_are_counted_where_they_are_preferred(
    tmp_path: Path, topology: Document, spec: Document
) -> None:
    likes = preference({"cpu": topology, "requirements": {"cpu": {"guest": 4}}})
    path = written(tmp_path / "vm.yaml", vm(at("domain.cpu", spec), instancetype=None), likes)
    assert read_manifest(path).spec.domain.vcpus == 4


def test_a_vm_that_says_nothing_of_devices_is_the_same_with_a_preference_of_nothing(tmp_path: Path) -> None:
    spec = {"volumes": [{"name": "root", "emptyDisk": {"capacity": "1Gi"}}], "domain": {"memory": {"guest": "1Gi"}}}
    mine = written(tmp_path / "vm.yaml", vm(spec, instancetype=None), preference())
    alone = written(tmp_path / "alone.yaml", vm(spec, instancetype=None, preference=None))
    one, other = read_manifest(mine), read_manifest(alone)
    assert one.spec.domain.devices.connected == other.spec.domain.devices.connected
    assert one.spec.disks == other.spec.disks


@pytest.mark.parametrize("wrong", ["x", ["x"], [{"name": ["x"]}], 5, {"x": "y"}])
@pytest.mark.parametrize(
    "field", ["domain", "domain.devices", "domain.devices.disks", "volumes", "domain.cpu", "networks"]
)
def test_a_vm_that_is_not_in_shape_is_refused_as_without_them(tmp_path: Path, field: str, wrong: Any) -> None:
    likes = preference({"devices": {"preferredDiskBus": "virtio", "preferredInterfaceModel": "e1000e"}})
    mine = vm()
    mine["spec"]["template"]["spec"] = {"domain": {}, **at(field, wrong)}
    line = problem_of(written(tmp_path / "vm.yaml", mine, instancetype(), likes))
    assert f"spec.template.spec.{field}" in line


def test_what_kubevirt_installs_in_every_cluster_is_an_instance_type_or_a_preference() -> None:
    names = {kind: list(specs) for kind, specs in json.loads(FILE.read_bytes()).items()}
    assert list(names) == ["VirtualMachineClusterInstancetype", "VirtualMachineClusterPreference"]
    for kind in names:
        for name in names[kind]:
            found = common(kind, name)
            assert found is not None
            checked(Instancetype if kind.endswith("type") else Preference, found.value, f"{found.file}: ")
    series = {name.partition(".")[0] for name in names["VirtualMachineClusterInstancetype"]}
    assert series == {"cx1", "d1", "gn1", "m1", "n1", "o1", "rt1", "u1"}


def test_it_is_found_by_name_without_a_file_and_one_beside_or_in_a_flags_file_wins(tmp_path: Path) -> None:
    """It said: names VirtualMachineClusterInstancetype u1.large, which is not here; get it with `kubectl get ...`."""
    named = vm(instancetype={"name": "u1.large"}, preference={"name": "fedora"})
    path = written(tmp_path / "vm.yaml", named)
    given = read_vm(path)
    assert (given.instance.spec.domain.vcpus, given.instance.spec.domain.guest_memory) == (2, 8 << 30)
    assert given.instance.spec.efi is not None
    assert [names_of(document)[1] for document in given.documents] == ["vm", "u1.large", "fedora"]
    installed = "(common-instancetypes v1.7.0)"
    assert "\n".join(given.notes) == (
        f"{path}: spec: as KubeVirt installs them: u1.large {installed} and fedora {installed}; "
        "a cluster's own are given by a flag or beside"
    )
    own = instancetype() | {"metadata": {"name": "u1.large"}}
    flag = written(tmp_path / "types.yaml", own)
    beside = written(tmp_path / "both.yaml", named, own)
    for found in (read_vm(path, types={"instancetype": flag}), read_vm(beside)):
        assert found.instance.spec.domain.vcpus == 4
        assert f"spec: as KubeVirt installs them: fedora {installed}; " in found.notes[0]


def test_a_name_that_kubevirt_does_not_install_or_of_a_namespace_is_not_found(tmp_path: Path) -> None:
    for matcher in ({"name": "u1.huge"}, {"name": "u1.large", "kind": "VirtualMachineInstancetype"}):
        line = problem_of(written(tmp_path / "vm.yaml", vm(instancetype=matcher, preference=None)))
        assert f"{matcher['name']}, which is not here; get it with `kubectl get " in line


def test_of_two_releases_the_first_ones_objects_are_written() -> None:
    older, newer = (json.dumps(instancetype({"cpu": {"guest": number}})) for number in (1, 2))
    assert common_instancetypes.written(f"{newer}\n---\n---\n{older}\n") == (
        '{\n"VirtualMachineClusterInstancetype": {\n"medium": {"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}}\n}\n}\n'
    )
