"""The VM manifests that others publish, and what becomes of each: `.venv/bin/python -m tests.published` prints a table.

tests/fixtures/published/SOURCE/NAME.yaml are our own versions of what people have: examples, documentation, dumps,
what other programs make. Fields, structure and form are those of the source; names, images and texts are ours. Comments
at the top of a file are its data:

    # from: kubevirt/kubevirt examples/vmi-gpu.yaml (one GPU)            where it is from, and what it shows
    # refused: kubectl refuses cpu.pins as unknown                       why it is rightly refused
    # render: --block-volume root                                        flags that it needs; `# pod:` are those of pod;
                                                                         instancetypes/ is a folder of tests/fixtures
    # device intel.com/U630: mdev                                        what a resource is: a mediated device, `usb`,
                                                                         or the address of its first function; others
                                                                         are functions with addresses made up here

`gpu-launcher render` and `gpu-launcher pod` run on each, in this process, as they are on the command line.
"""

import io
import json
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from typer import TyperException

from launcher.cli import command_line
from pci.resource import DeviceKind, variable
from program.errors import ProgramError
from program.output import aligned
from program.problem import one_line
from tests.processes import FIXTURES

PUBLISHED = FIXTURES / "published"

#: For VMs with CPUs of their own: all of a machine with eight NUMA nodes.
_CPUS = ("--cpuset", "0-255", "--sysfs", str(FIXTURES / "sysfs" / "hgx-a100-8-gpu"))

_KINDS = ("VirtualMachine", "VirtualMachineInstance")
#: Of a pool and of a replica set: what it makes, and the field with its template.
_TEMPLATES = {
    "VirtualMachinePool": ("VirtualMachine", "virtualMachineTemplate"),
    "VirtualMachineInstanceReplicaSet": ("VirtualMachineInstance", "template"),
}


@dataclass(frozen=True)
class Manifest:
    """A published manifest, by its name `SOURCE/NAME`."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(PUBLISHED).with_suffix(""))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def source(self) -> str | None:
        return next(iter(self._said("from")), None)

    @property
    def refused(self) -> str | None:
        """Why it is rightly refused; None for a manifest that KubeVirt takes."""
        return next(iter(self._said("refused")), None)

    @property
    def devices(self) -> Mapping[str, str]:
        """What a resource is, where it is not a function at whatever address."""
        return dict(found.rsplit(": ", 1) for found in self._said("device", separator=" "))

    def flags(self, command: str) -> list[str]:
        said = [flag for flags in self._said(command) for flag in shlex.split(flags)]
        return [str(FIXTURES / flag) if flag.startswith("instancetypes/") else flag for flag in said]

    @cached_property
    def documents(self) -> tuple[dict[str, Any], ...]:
        """All that is in it, with the items of a List for the List."""
        found = [document for document in yaml.load_all(self.text, yaml.CSafeLoader) if document]
        return tuple(item for document in found for item in document.get("items", [document]))

    @property
    def vms(self) -> tuple[dict[str, Any], ...]:
        return tuple(
            document
            for document in map(_of_pool, self.documents)
            if document.get("kind") in _KINDS and str(document.get("apiVersion", "kubevirt.io")).startswith("kubevirt.")
        )

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every field of its VMs, like spec.domain.devices.gpus[].name: `spec` is the instance's, `vm` a VM's own."""
        return frozenset(path for vm in self.vms for path in _paths_of(vm))

    def _said(self, word: str, separator: str = ": ") -> list[str]:
        head = re.match(r"(#.*\n)*", self.text)
        assert head is not None
        return re.findall(rf"^# {word}{separator}(.+)$", head[0], re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What a command came to; `error` is its line, without the file's name, None where there was none."""

    error: str | None


@dataclass(frozen=True)
class Row:
    manifest: Manifest
    render: Outcome
    pod: Outcome


def manifests() -> tuple[Manifest, ...]:
    return tuple(Manifest(path) for path in sorted(PUBLISHED.glob("*/*.yaml")))


def table() -> tuple[Row, ...]:
    """What becomes of each."""
    with tempfile.TemporaryDirectory(prefix="published-") as folder:
        return tuple(
            Row(found, run("render", found, *_world(found, Path(folder))), run("pod", found, "--start"))
            for found in manifests()
        )


def run(command: str, manifest: Manifest, *flags: str) -> Outcome:
    """A command of gpu-launcher, with the flags that the manifest says, and these."""
    arguments = [command, str(manifest.path), *manifest.flags(command), *flags]
    try:
        with _quiet():
            command_line(arguments)(arguments, standalone_mode=False)
    except ProgramError as error:
        return Outcome(str(error).removeprefix(f"{manifest.path}: "))
    except TyperException as error:
        return Outcome(one_line(error.format_message()))
    return Outcome(None)


@contextmanager
def _quiet() -> Iterator[None]:
    """What is printed is lost: the commands write to the file descriptor, and warnings to sys.stderr."""
    stdout, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)


def _world(manifest: Manifest, folder: Path) -> list[str]:
    """The flags for what a pod of it would have: variables, DRA's files, CPUs and what Multus says."""
    environ: dict[str, list[str]] = {}
    numbers = count(1)
    for resource, wanted in _resources(manifest).items():
        kind, first = _device(manifest.devices.get(resource, ""))
        devices = [_address(kind, next(numbers)) for _ in range(wanted)]
        environ[variable(resource, kind)] = [first, *devices[1:]] if first else devices
    # Nothing of the tester's own environment.
    flags = ["--env-file", os.devnull, *(f"--env={name}={','.join(values)}" for name, values in environ.items())]
    if requests := _requests(manifest):
        directory = folder / manifest.name
        for claim, request in requests:
            _publish(directory / claim / request, request, _address(DeviceKind.PCI, next(numbers)))
        flags += ["--dra", str(directory)]
    if networks := _virtual_functions(manifest):
        status = folder / f"{manifest.name.replace('/', '-')}.json"
        status.write_text(
            json.dumps([_network_status(name, _address(DeviceKind.PCI, next(numbers))) for name in networks])
        )
        flags += ["--network-status", str(status)]
    if any(path.endswith("dedicatedCpuPlacement") for path in manifest.paths):
        flags += _CPUS
    return flags


def _resources(manifest: Manifest) -> Mapping[str, int]:
    """The resources that entries ask for, the instance types' among them, and the most that one object asks for."""
    most: Counter[str] = Counter()
    for document in manifest.documents:
        most |= Counter(entry["deviceName"] for entry in _entries(document) if "deviceName" in entry)
    return most


def _of_pool(document: dict[str, Any]) -> dict[str, Any]:
    """The VM that a pool or a replica set makes many of; any other document as it is."""
    kind, field = _TEMPLATES.get(str(document.get("kind")), (None, ""))
    return document if kind is None else {"kind": kind, **document["spec"][field], "metadata": document["metadata"]}


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    devices = _instance(document).get("domain", {}).get("devices") or {}
    if str(document.get("kind")).endswith("Instancetype"):
        devices = document.get("spec", {})
    return [entry for kind in ("gpus", "hostDevices") for entry in devices.get(kind) or []]


def _requests(manifest: Manifest) -> list[tuple[str, str]]:
    """The folder of a claim, and the request, of each entry and network that has one."""
    found = []
    for vm in manifest.vms:
        spec = _instance(vm)
        folders = {
            claim["name"]: f"resourceclaims/{claim['resourceClaimName']}"
            if "resourceClaimName" in claim
            else f"resourceclaimtemplates/{claim['name']}"
            for claim in spec.get("resourceClaims", [])
        }
        asking = [*_entries(vm), *(network.get("resourceClaim", {}) for network in spec.get("networks", []))]
        found += [(folders[entry["claimName"]], entry["requestName"]) for entry in asking if "requestName" in entry]
    return found


def _virtual_functions(manifest: Manifest) -> list[str]:
    """The NetworkAttachmentDefinitions of all networks of a VM that has an SR-IOV interface."""
    found = []
    for spec in map(_instance, manifest.vms):
        interfaces = (spec.get("domain", {}).get("devices") or {}).get("interfaces") or []
        if any("sriov" in interface for interface in interfaces):
            found += [network["multus"]["networkName"] for network in spec.get("networks", []) if "multus" in network]
    return found


def _network_status(definition: str, address: str) -> dict[str, Any]:
    """What Multus says of a virtual function, which is taken for an interface with an address where it is to be one."""
    name = definition if "/" in definition else f"default/{definition}"
    return {"name": name, "interface": "", "ips": ["192.0.2.1"], "device-info": {"pci": {"pci-address": address}}}


def _publish(directory: Path, request: str, address: str) -> None:
    """A DRA driver's file (KEP-5304)."""
    directory.mkdir(parents=True)
    device = {
        "driver": "cards.example.com",
        "pool": "node-1",
        "name": "device-0",
        "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}},
    }
    metadata = {
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "kind": "DeviceMetadata",
        "metadata": {"name": directory.parent.name, "namespace": "default"},
        "requests": [{"name": request, "devices": [device]}],
    }
    (directory / "cards.example.com-metadata.json").write_text(json.dumps(metadata))


def _device(said: str) -> tuple[DeviceKind, str | None]:
    match said:
        case "mdev":
            return DeviceKind.MDEV, None
        case "usb":
            return DeviceKind.USB, None
        case _:
            return DeviceKind.PCI, said or None


def _address(kind: DeviceKind, number: int) -> str:
    """In a PCI domain that no recorded machine has."""
    match kind:
        case DeviceKind.MDEV:
            return str(UUID(int=number))
        case DeviceKind.USB:
            return f"1:{number}"
        case DeviceKind.PCI:
            return f"0001:{number:02x}:00.0"


def _instance(document: dict[str, Any]) -> dict[str, Any]:
    """The instance's spec, of whatever there is."""
    spec: dict[str, Any] = document.get("spec") or {}
    template = spec.get("template") if document.get("kind") == "VirtualMachine" else None
    found: dict[str, Any] = template.get("spec") or {} if isinstance(template, dict) else spec
    return found


def _paths_of(vm: dict[str, Any]) -> Iterator[str]:
    if vm["kind"] == "VirtualMachine":
        own = {name: value for name, value in (vm.get("spec") or {}).items() if name != "template"}
        yield from _walk(own, "vm")
        template = (vm.get("spec") or {}).get("template") or {}
        yield from _walk(template.get("metadata") or {}, "metadata")
    yield from _walk(vm.get("metadata") or {}, "metadata")
    yield from _walk(_instance(vm), "spec")


def _walk(value: Any, path: str) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield f"{path}.{name}"
                yield from _walk(inner, f"{path}.{name}")
        case list():
            for inner in value:
                yield from _walk(inner, f"{path}[]")


def _has(pattern: str) -> Callable[[Manifest], bool]:
    """Whether a field of the manifest's VMs is of this pattern, whole."""
    return lambda manifest: any(re.fullmatch(pattern, path) for path in manifest.paths)


def _bridges(manifest: Manifest, kind: str) -> bool:
    """Whether a VM has an interface of kind bridge on a network of this kind."""
    for spec in map(_instance, manifest.vms):
        networks = {network["name"] for network in spec.get("networks", []) if kind in network}
        interfaces = spec.get("domain", {}).get("devices", {}).get("interfaces") or []
        if any(interface["name"] in networks for interface in interfaces if "bridge" in interface):
            return True
    return False


def _outside(manifest: Manifest) -> list[str]:
    return [str(document.get("kind")) for document in manifest.documents if document not in manifest.vms]


_DEVICES = r"spec\.domain\.devices"

#: What manifests have, to count by: the causes for which one may not be taken.
FEATURES: Mapping[str, Callable[[Manifest], bool]] = {
    "GPUs and other devices": _has(rf"{_DEVICES}\.(gpus|hostDevices)"),
    "devices by DRA": _has(r"spec\.resourceClaims"),
    "masquerade": _has(rf"{_DEVICES}\.interfaces\[\]\.masquerade"),
    "bridge on the pod's network": lambda manifest: _bridges(manifest, "pod"),
    "bridge by Multus": lambda manifest: _bridges(manifest, "multus"),
    "Multus": _has(r"spec\.networks\[\]\.multus"),
    "SR-IOV": _has(rf"{_DEVICES}\.interfaces\[\]\.sriov"),
    "binding plugin": _has(rf"{_DEVICES}\.interfaces\[\]\.binding"),
    "binding of the core that is gone or new": _has(
        rf"{_DEVICES}\.interfaces\[\]\.(slirp|macvtap|passt|passtBinding|vhostuser)"
    ),
    "interface's state, boot order, DHCP or ports": _has(
        rf"{_DEVICES}\.interfaces\[\]\.(state|bootOrder|dhcpOptions|ports)"
    ),
    "networkInterfaceMultiqueue": _has(rf"{_DEVICES}\.networkInterfaceMultiqueue"),
    "instance type or preference": _has(r"vm\.(instancetype|preference)"),
    "probes": _has(r"spec\.(readiness|liveness)Probe"),
    "accessCredentials": _has(r"spec\.accessCredentials"),
    "virtiofs": _has(rf"{_DEVICES}\.filesystems"),
    "containerPath, serviceAccountName": _has(r"spec\.(volumes\[\]\.containerPath|serviceAccountName)"),
    "config map, secret, service account": _has(r"spec\.volumes\[\]\.(configMap|secret|serviceAccount)"),
    "sysprep": _has(r"spec\.volumes\[\]\.sysprep"),
    "LUN": _has(rf"{_DEVICES}\.disks\[\]\.lun"),
    "dataVolumeTemplates": _has(r"vm\.dataVolumeTemplates"),
    "CPUs of its own": _has(r"spec\.domain\.cpu\.dedicatedCpuPlacement"),
    "generateName and no name": lambda manifest: any("name" not in vm.get("metadata", {}) for vm in manifest.vms),
    "stopped: Halted, running: false, neither": lambda manifest: any(
        vm["kind"] == "VirtualMachine"
        and (vm["spec"].get("runStrategy", "Halted") == "Halted" and not vm["spec"].get("running"))
        for vm in manifest.vms
    ),
    "a dump: status, managedFields": lambda manifest: (
        any("status" in vm for vm in manifest.vms) or _has(r"metadata\.managedFields")(manifest)
    ),
    "several VMs": lambda manifest: len(manifest.vms) > 1,
    "other objects beside the VM": lambda manifest: bool(manifest.vms and _outside(manifest)),
    "a List": lambda manifest: re.search(r"^(  )?\"?kind\"?: \"?\w*List\b", manifest.text, re.MULTILINE) is not None,
    "a `---` at the end": lambda manifest: manifest.text.rstrip().endswith("\n---"),
    "JSON": lambda manifest: re.search(r"^\{", manifest.text, re.MULTILINE) is not None,
}


def _first(error: str) -> str:
    """An error's kind: its path without numbers, or its words."""
    path = re.match(r"([a-zA-Z][\w.\[\]-]*)(?=: )", error)
    return re.sub(r"\[\d+\]", "[]", path[1]) if path else re.sub(r"(line|column) \d+", r"\1 N", error)[:90]


def _word(manifest: Manifest, outcome: Outcome) -> str:
    """`rightly` refused; `taken` though it should not be."""
    if manifest.refused is None:
        return "no" if outcome.error else "yes"
    return "rightly" if outcome.error else "taken"


def main() -> None:
    rows = table()
    lines = [("manifest", "render", "pod", "why not")]
    for row in rows:
        words = (_word(row.manifest, row.render), _word(row.manifest, row.pod))
        lines.append((row.manifest.name, *words, row.render.error or row.pod.error or ""))
        if row.manifest.refused:
            lines.append(("", "", "", f"rightly: {row.manifest.refused}"))
    taken = [row for row in rows if row.manifest.refused is None]
    counts = [("of those", "there", "rendered", "pods")]
    for feature, has in {"all": lambda _: True, **FEATURES}.items():
        having = [row for row in taken if has(row.manifest)]
        rendered = sum(row.render.error is None for row in having)
        pods = sum(row.pod.error is None for row in having)
        counts.append((feature, str(len(having)), str(rendered), str(pods)))
    firsts = Counter(_first(row.render.error) for row in taken if row.render.error)
    print(*aligned(lines), sep="\n")
    refused = len(rows) - len(taken)
    print(f"\n{len(rows)} manifests; {refused} are rightly refused, the other {len(taken)} are to be taken\n")
    print(*aligned(counts), sep="\n")
    print("\nthe first error of render, of those")
    print(*aligned([(str(number), first) for first, number in firsts.most_common()]), sep="\n")


if __name__ == "__main__":
    main()
