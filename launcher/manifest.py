"""The manifest: the part of kubevirt.io/v1 that the launcher converts, and the refusal of everything else.

Field names, defaults and meaning are KubeVirt's (staging/src/kubevirt.io/api/core/v1/schema.go). A field that is not
here is refused by its path: a misspelt `gpu:` must not yield a guest without its GPU. `metadata` belongs to Kubernetes
and `status` to controllers; what we don't need of them is left alone.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import yaml
from pydantic_core import ErrorDetails, ValidationError

from launcher.errors import UserError
from launcher.model import Checks, Reads, model, open_model, validator
from launcher.quantity import parse_quantity


def _nothing(value: Any) -> None:
    if value:
        raise ValueError("is not converted yet; leave it out")


def _count(value: int) -> int:
    if not 0 <= value < 2**32:
        raise ValueError(f"{value}; expected 0 to 4294967295")
    return value


def _quantity(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a quantity like 8Gi, found {_shown(value)}")  # noqa: TRY004 (pydantic-core's way)
    return parse_quantity(value)


def _alias_name(value: str) -> str:
    # libvirt drops an alias with any other character in it, and doesn't say so.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        raise ValueError(f"{value!r} cannot be part of a libvirt alias; expected letters, digits, - and _")
    return value


def _cpu_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise ValueError(f"{value!r} is not the name of a CPU model or feature, like Skylake-Server or sse4.2")
    return value


def _q35(value: str) -> str:
    if not re.fullmatch(r"q35|pc-q35-[A-Za-z0-9.-]+", value):
        raise ValueError(f"{value!r}; expected q35 or a pc-q35 version, the machines that have PCI Express")
    return value


def _path_in_image(value: str) -> str:
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", value) or ".." in value.split("/"):
        raise ValueError(f"{value!r}; expected an absolute path of a file in the image, like /boot/vmlinuz")
    return value


def _dns_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        raise ValueError(f"{value!r} is no Kubernetes name; expected lower-case letters, digits, - and .")
    return value


def _uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{value!r} is not a UUID") from None


def _resource(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", value):
        raise ValueError(f"{value!r} is no resource name; expected one like nvidia.com/GH100_H100_PCIE")
    return value


#: A known field that nothing is made of yet: absent, null and empty are one, anything in it is refused.
NotConverted = Annotated[None, Reads(_nothing)]
Count = Annotated[int, Checks(_count)]
Quantity = Annotated[int, Reads(_quantity)]
Name = Annotated[str, Checks(_dns_name)]
CPUName = Annotated[str, Checks(_cpu_name)]


@open_model
class Metadata:
    name: Name
    namespace: Name = "default"


@open_model
class TemplateMetadata:
    """Labels and annotations, of which nothing is used yet."""


@model
class CPUFeature:
    name: CPUName
    policy: Literal["force", "require", "optional", "disable", "forbid"] = "require"


@model
class CPU:
    """0 stands for "not said", as for KubeVirt."""

    sockets: Count = 0
    cores: Count = 0
    threads: Count = 0
    model: CPUName = "host-model"
    features: tuple[CPUFeature, ...] = ()


@model
class Memory:
    guest: Quantity | None = None


@model
class Resources:
    """By resource name; the guest's size comes from `cpu` and `memory`, the rest is between the pod and its node."""

    requests: dict[str, Quantity] = field(default_factory=dict)
    limits: dict[str, Quantity] = field(default_factory=dict)


@model
class Machine:
    type: Annotated[str, Checks(_q35)] = "q35"


@model
class BIOS:
    useSerial: bool = False


@model
class EFI:
    secureBoot: bool = True


@model
class Bootloader:
    bios: BIOS | None = None
    efi: EFI | None = None

    def __post_init__(self) -> None:
        if self.bios is not None and self.efi is not None:
            raise ValueError("has both bios and efi; expected one of them")


@model
class KernelBootContainer:
    """An image with a kernel in it. The pod mounts it; where the image comes from is between the pod and its node."""

    image: str
    kernelPath: Annotated[str, Checks(_path_in_image)]
    initrdPath: Annotated[str, Checks(_path_in_image)] | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    imagePullSecret: str | None = None


@model
class KernelBoot:
    kernelArgs: str | None = None
    container: KernelBootContainer


@model
class Firmware:
    uuid: Annotated[UUID, Reads(_uuid)] | None = None
    serial: str | None = None
    bootloader: Bootloader = Bootloader()
    kernelBoot: KernelBoot | None = None


@model
class HostDevice:
    """An entry of `gpus` or `hostDevices`: one device of the resource `deviceName`, called `name` in the domain."""

    name: Annotated[str, Checks(_alias_name)]
    deviceName: Annotated[str, Checks(_resource)]


@model
class Devices:
    gpus: tuple[HostDevice, ...] = ()
    hostDevices: tuple[HostDevice, ...] = ()
    disks: NotConverted = None
    interfaces: NotConverted = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for device in (*self.gpus, *self.hostDevices):
            if device.name in seen:
                raise ValueError(f"two entries of gpus and hostDevices are called {device.name!r}; rename one of them")
            seen.add(device.name)


@model
class Domain:
    cpu: CPU = CPU()
    memory: Memory = Memory()
    resources: Resources = Resources()
    machine: Machine = Machine()
    firmware: Firmware = Firmware()
    devices: Devices = Devices()


@model
class Spec:
    domain: Domain
    architecture: Literal["amd64"] = "amd64"
    terminationGracePeriodSeconds: Count = 30
    networks: NotConverted = None
    volumes: NotConverted = None


@model
class VirtualMachineInstance:
    apiVersion: Literal["kubevirt.io/v1"]
    kind: Literal["VirtualMachineInstance"]
    metadata: Metadata
    spec: Spec
    status: Any = None


@model
class Template:
    metadata: TemplateMetadata = TemplateMetadata()
    spec: Spec


@model
class VirtualMachineSpec:
    """`runStrategy` and `running` say when a VM runs; that is decided before the launcher starts."""

    template: Template
    runStrategy: Literal["Always", "RerunOnFailure", "Manual", "Halted", "Once"] | None = None
    running: bool | None = None


@model
class VirtualMachine:
    apiVersion: Literal["kubevirt.io/v1"]
    kind: Literal["VirtualMachine"]
    metadata: Metadata
    spec: VirtualMachineSpec
    status: Any = None

    def instance(self) -> VirtualMachineInstance:
        """The instance that KubeVirt's controller would make: the VM's name, its template's spec."""
        return VirtualMachineInstance(
            apiVersion=self.apiVersion,
            kind="VirtualMachineInstance",
            metadata=self.metadata,
            spec=self.spec.template.spec,
        )


_KINDS: Mapping[str, type[VirtualMachine] | type[VirtualMachineInstance]] = {
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstance": VirtualMachineInstance,
}


_DEEPEST = 100


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it, which refuses a key that is there twice."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Called for every mapping before it is made, and again where it is merged into another; after the first time
        # it holds what was merged into it as well.
        if not getattr(node, "seen", False):
            node.seen = True  # type: ignore[attr-defined]
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        problem = f"the key {key.value!r} is there twice"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
        super().flatten_mapping(node)


def read_manifest(path: Path) -> VirtualMachineInstance:
    """Read a VirtualMachineInstance, or a VirtualMachine as the instance it would make.

    UserError, in one line that begins with the file and the field's path, for a file that is missing or not YAML and
    for a manifest that says something the launcher does not convert.
    """
    document = _read_yaml(path)
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a VirtualMachine or VirtualMachineInstance, found {_shown(document)}")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{path}: kind: expected VirtualMachine or VirtualMachineInstance, found {_shown(kind)}")
    try:
        manifest = validator(_KINDS[kind]).validate_python(document)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        others = f" (and {len(more)} more)" if more else ""
        raise UserError(f"{path}: {_line(first)}{others}") from error
    return manifest.instance() if isinstance(manifest, VirtualMachine) else manifest


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_depth(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # The last three are PyYAML's for values that are not of their tag (!!int "", !!bool maybe, 2001-99-99).
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        said = [text for text in (getattr(error, "context", None), getattr(error, "problem", None)) if text]
        problem = ", ".join(said) or " ".join(str(error).split())
        raise UserError(f"{path}: is not YAML: {where}{problem}") from error


def _refuse_depth(text: str) -> None:
    """ValueError for a document nested deeper than any manifest: composing one overflows libyaml's stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")


def _line(error: ErrorDetails) -> str:
    """`spec.domain.devices.gpus[0].name: what is wrong with it`."""
    parts = list(error["loc"])
    if error["type"] == "unknown_field":
        parts.append(error["ctx"]["field"])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    match error["type"]:
        case "missing":
            problem = "is missing"
        case "value_error" | "unknown_field":
            problem = error["msg"].removeprefix("Value error, ")
        case "not_a_mapping" | "dict_type":
            problem = f"expected a mapping, found {_shown(error['input'])}"
        case _:
            message = error["msg"]
            problem = f"{message[0].lower()}{message[1:]}, found {_shown(error['input'])}"
    return f"{where}: {problem}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."
