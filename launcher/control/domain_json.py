"""A domain and its statistics in the JSON of KubeVirt's Go types, api.Domain and stats.DomainStats
(pkg/virt-launcher/virtwrap/api/schema.go and stats/types.go): keys are the names of Go's fields.

What is left out is what Go takes for its zero value. Everything that is there is libvirt's.
"""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from launcher.running.operations import State, Statistics
from launcher.running.vm import Identity

_USER_ALIAS = "ua-"  # what libvirt wants of a name that is not its own; KubeVirt's JSON has it as a flag

_STATES = {
    "no state": "NoState", "running": "Running", "blocked": "Blocked", "paused": "Paused",
    "shutting down": "ShuttingDown", "shutoff": "Shutoff", "crashed": "Crashed", "pmsuspended": "PMSuspended",
}  # fmt: skip


def domain_json(vm: Identity, state: State, xml: str | None) -> dict[str, Any]:
    """api.Domain; without XML its spec has the name alone."""
    spec = {"Name": f"{vm.namespace}_{vm.name}"} if xml is None else _spec(ElementTree.fromstring(xml))  # noqa: S314 it is libvirt's
    return {
        "kind": "Domain",
        "apiVersion": "1.2.2",
        "ObjectMeta": {"name": vm.name, "namespace": vm.namespace, "uid": vm.uid},
        "Spec": {**spec, "Metadata": {"KubeVirt": {"UID": vm.uid}}},
        "Status": {"Status": _STATES.get(state.state, "NoState"), "Reason": _reason(state)},
    }


def _reason(state: State) -> str:
    """KubeVirt has no reasons for running, and words of one piece for the others."""
    if state.state in ("no state", "running", "blocked", "pmsuspended"):
        return "Unknown"
    if state.reason == "ioerror":
        return "IOError"
    return "".join(word.capitalize() for word in state.reason.split())


def _spec(domain: Element) -> dict[str, Any]:
    """What is fixed of api.DomainSpec, and the devices whose state virt-handler looks up."""
    kind = domain.find("os/type")
    vcpu = domain.find("vcpu")
    memory = domain.find("memory")
    assert kind is not None
    assert vcpu is not None
    assert memory is not None
    return {
        "Type": domain.get("type"),
        "Name": domain.findtext("name"),
        "UUID": domain.findtext("uuid"),
        "Memory": {"Value": int(memory.text or 0), "Unit": memory.get("unit", "KiB")},
        "VCPU": {"Placement": vcpu.get("placement", "static"), "CPUs": int(vcpu.text or 0)},
        "OS": {"Type": {"OS": kind.text, "Arch": kind.get("arch", ""), "Machine": kind.get("machine", "")}},
        "Devices": {
            "Disks": [_disk(disk) for disk in domain.iterfind("devices/disk")],
            "Interfaces": [_interface(interface) for interface in domain.iterfind("devices/interface")],
            "HostDevices": [_hostdev(hostdev) for hostdev in domain.iterfind("devices/hostdev")],
        },
    }


def _disk(disk: Element) -> dict[str, Any]:
    return {
        "Device": disk.get("device", "disk"),
        "Type": disk.get("type"),
        "Source": _attributes(disk.find("source"), Dev="dev", File="file"),
        "Target": _attributes(disk.find("target"), Bus="bus", Device="dev"),
        "Alias": _alias(disk),
    }


def _interface(interface: Element) -> dict[str, Any]:
    return {
        "Type": interface.get("type"),
        "Model": _attributes(interface.find("model"), Type="type"),
        "MAC": _attributes(interface.find("mac"), MAC="address"),
        "Target": _attributes(interface.find("target"), Device="dev"),
        "Alias": _alias(interface),
    }


def _hostdev(hostdev: Element) -> dict[str, Any]:
    return {
        "Type": hostdev.get("type"),
        "Mode": hostdev.get("mode", ""),
        "Managed": hostdev.get("managed", ""),
        "Source": {"Address": _address(hostdev.find("source/address"), hostdev.get("type", ""))},
        "Address": _address(hostdev.find("address")),
        "Alias": _alias(hostdev),
    }


def _address(address: Element | None, kind: str = "") -> dict[str, str] | None:
    """`kind` is of an address whose element does not say it."""
    fields = _attributes(
        address, Type="type", Domain="domain", Bus="bus", Slot="slot", Function="function", UUID="uuid", Device="device"
    )
    return fields and {"Type": kind, **fields}


def _alias(device: Element) -> dict[str, Any] | None:
    alias = device.find("alias")
    if alias is None:
        return None
    name = alias.get("name", "")
    return {"Name": name.removeprefix(_USER_ALIAS), "UserDefined": name.startswith(_USER_ALIAS)}


def _attributes(element: Element | None, **keys: str) -> dict[str, str] | None:
    """The element's attributes under KubeVirt's keys, as far as they are there; None for no element."""
    if element is None:
        return None
    found = ((key, element.get(name)) for key, name in keys.items())
    return {key: value for key, value in found if value is not None}


def statistics_json(found: Statistics) -> dict[str, Any]:
    """stats.DomainStats: each value beside a flag that says whether it is known. Memory in KiB, time in nanoseconds."""
    counters = found.counters
    memory = {**found.memory, "total": found.maximum_memory}
    return {
        "Name": found.name,
        "UUID": found.uuid,
        "Cpu": _flagged(counters, "cpu.", Time="time", User="user", System="system"),
        "Memory": _flagged(
            memory, "",
            Unused="unused", Available="available", ActualBalloon="actual", RSS="rss", SwapIn="swap_in",
            SwapOut="swap_out", MajorFault="major_fault", MinorFault="minor_fault", Usable="usable",
            Cached="disk_caches", Total="total",
        ),
        # KubeVirt reads through these without looking whether they are there.
        "MigrateDomainJobInfo": {},
        "DirtyRate": {},
        "Load": {},
        "Vcpu": [
            _flagged(counters, f"vcpu.{number}.", State="state", Time="time", Wait="wait", Delay="delay")
            for number in range(counters.get("vcpu.current", 0))
        ],
        "Net": [
            _flagged(
                counters, f"net.{number}.",
                Name="name", RxBytes="rx.bytes", RxPkts="rx.pkts", RxErrs="rx.errs", RxDrop="rx.drop",
                TxBytes="tx.bytes", TxPkts="tx.pkts", TxErrs="tx.errs", TxDrop="tx.drop",
            )
            for number in range(counters.get("net.count", 0))
        ],
        "Block": [
            _flagged(
                counters, f"block.{number}.",
                Name="name", BackingIndex="backingIndex", Path="path", RdReqs="rd.reqs", RdBytes="rd.bytes",
                RdTimes="rd.times", WrReqs="wr.reqs", WrBytes="wr.bytes", WrTimes="wr.times", FlReqs="fl.reqs",
                FlTimes="fl.times", Errors="errors", Allocation="allocation", Capacity="capacity", Physical="physical",
            )
            for number in range(counters.get("block.count", 0))
        ],
    }  # fmt: skip


def _flagged(counters: Mapping[str, Any], prefix: str, **keys: str) -> dict[str, Any]:
    flagged: dict[str, Any] = {}
    for key, name in keys.items():
        if (value := counters.get(prefix + name)) is not None:
            flagged |= {f"{key}Set": True, key: value}
    return flagged
