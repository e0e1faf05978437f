"""What KubeVirt's Go types find in our JSON: api.Domain and stats.DomainStats."""

import pytest

from launcher.control.domain_json import domain_json, statistics_json
from launcher.running.operations import State, Statistics
from launcher.running.vm import Identity
from tests.processes import FIXTURES

VM = Identity("lab", "one-gpu", "")
RUNNING = State("running", "booted")


def test_a_card_is_found_by_its_name_with_all_its_functions() -> None:
    xml = (FIXTURES / "domains" / "rtx-2060.xml").read_text()
    gpu, *companions = domain_json(VM, RUNNING, xml)["Spec"]["Devices"]["HostDevices"]
    assert gpu["Alias"] == {"Name": "gpu-gpu1", "UserDefined": True}
    assert (gpu["Type"], gpu["Mode"], gpu["Managed"]) == ("pci", "subsystem", "no")
    source = {"Type": "pci", "Domain": "0x0000", "Bus": "0x01", "Slot": "0x00", "Function": "0x0"}
    assert gpu["Source"] == {"Address": source}
    assert gpu["Address"]["Type"] == "pci"
    assert [companion["Source"]["Address"]["Function"] for companion in companions] == ["0x1", "0x2", "0x3"]


def test_disks_and_interfaces_are_found_as_virt_handler_looks_for_them() -> None:
    xml = """<domain type="kvm"><name>lab_one-gpu</name><memory unit="KiB">1024</memory><vcpu>2</vcpu>
    <os><type arch="x86_64" machine="pc-q35-7.2">hvm</type></os><devices>
    <disk type="file" device="cdrom"><source file="/a.iso"/><target dev="sda" bus="sata"/><alias name="ua-seed"/></disk>
    <disk type="block"><source dev="/dev/root"/><target dev="vda" bus="virtio"/><alias name="virtio-disk0"/></disk>
    <interface type="user"><mac address="02:00:00:00:00:01"/><model type="virtio"/></interface>
    </devices></domain>"""
    spec = domain_json(VM, RUNNING, xml)["Spec"]
    assert spec["OS"] == {"Type": {"OS": "hvm", "Arch": "x86_64", "Machine": "pc-q35-7.2"}}
    assert spec["Devices"] == {
        "Disks": [
            {
                "Device": "cdrom",
                "Type": "file",
                "Source": {"File": "/a.iso"},
                "Target": {"Bus": "sata", "Device": "sda"},
                "Alias": {"Name": "seed", "UserDefined": True},
            },
            {
                "Device": "disk",
                "Type": "block",
                "Source": {"Dev": "/dev/root"},
                "Target": {"Bus": "virtio", "Device": "vda"},
                "Alias": {"Name": "virtio-disk0", "UserDefined": False},
            },
        ],
        "Interfaces": [
            {
                "Type": "user",
                "Model": {"Type": "virtio"},
                "MAC": {"MAC": "02:00:00:00:00:01"},
                "Target": None,
                "Alias": None,
            }
        ],
        "HostDevices": [],
    }


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("running", "unpaused", ("Running", "Unknown")),
        ("paused", "ioerror", ("Paused", "IOError")),
        ("paused", "postcopy failed", ("Paused", "PostcopyFailed")),
        ("shutting down", "user", ("ShuttingDown", "User")),
        ("shutoff", "from snapshot", ("Shutoff", "FromSnapshot")),
        ("crashed", "panicked", ("Crashed", "Panicked")),
        ("pmsuspended", "unknown", ("PMSuspended", "Unknown")),
        ("no state", "unknown", ("NoState", "Unknown")),
    ],
)
def test_a_state_has_kubevirts_words(state: str, reason: str, status: tuple[str, str]) -> None:
    found = domain_json(VM, State(state, reason), None)["Status"]
    assert (found["Status"], found["Reason"]) == status


def test_a_value_that_libvirt_does_not_count_is_not_flagged() -> None:
    counters = {
        "cpu.time": 7, "vcpu.current": 2, "vcpu.0.state": 1, "vcpu.0.time": 3, "vcpu.1.time": 4,
        "net.count": 1, "net.0.name": "tap0", "net.0.rx.bytes": 5,
        "block.count": 1, "block.0.name": "vda", "block.0.rd.reqs": 0, "block.0.fl.times": 6,
    }  # fmt: skip
    found = statistics_json(Statistics("lab_vm", "uuid", counters, {"rss": 8, "actual": 9}, maximum_memory=10))
    assert found["Cpu"] == {"TimeSet": True, "Time": 7}
    assert found["Vcpu"] == [{"StateSet": True, "State": 1, "TimeSet": True, "Time": 3}, {"TimeSet": True, "Time": 4}]
    assert found["Net"] == [{"NameSet": True, "Name": "tap0", "RxBytesSet": True, "RxBytes": 5}]
    assert found["Block"] == [
        {"NameSet": True, "Name": "vda", "RdReqsSet": True, "RdReqs": 0, "FlTimesSet": True, "FlTimes": 6}
    ]
    assert found["Memory"] == {
        "RSSSet": True, "RSS": 8, "ActualBalloonSet": True, "ActualBalloon": 9, "TotalSet": True, "Total": 10,
    }  # fmt: skip
