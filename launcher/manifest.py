"""The manifest: the part of kubevirt.io/v1 that the launcher converts, and the refusal of everything else.

Field names, defaults and meaning are KubeVirt's (staging/src/kubevirt.io/api/core/v1/schema.go). A field that is not
here is refused by its path: a misspelt `gpu:` must not yield a guest without its GPU. `metadata` belongs to Kubernetes
and `status` to controllers; what we don't need of them is left alone.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from launcher.errors import UserError
from launcher.quantity import parse_quantity


class _Model(BaseModel):
    """Null is absence, as in Kubernetes; an unknown field is an error that guesses what was meant."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if cls.model_config["extra"] == "forbid":
            for field in data:
                if field not in cls.model_fields:
                    near = difflib.get_close_matches(str(field), cls.model_fields, n=1)
                    raise PydanticCustomError(
                        "unknown_field",
                        "not a field that gpu-launcher converts; {hint}",
                        {"field": str(field), "hint": _hint(near, list(cls.model_fields))},
                    )
        return {field: value for field, value in data.items() if value is not None}


def _hint(near: list[str], known: list[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"


def _nothing(value: Any) -> Any:
    if value:
        raise ValueError("is not converted yet; leave it out")
    return value


def _quantity(value: Any) -> Any:
    return parse_quantity(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else value


def _alias_name(value: str) -> str:
    # libvirt drops an alias with any other character in it, and doesn't say so.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        raise ValueError(f"{value!r} cannot be part of a libvirt alias; expected letters, digits, - and _")
    return value


def _q35(value: str) -> str:
    if not re.fullmatch(r"q35|pc-q35-[A-Za-z0-9.-]+", value):
        raise ValueError(f"{value!r}; expected q35 or a pc-q35 version, the machines that have PCI Express")
    return value


def _dns_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        raise ValueError(f"{value!r} is no Kubernetes name; expected lower-case letters, digits, - and .")
    return value


def _uuid(value: Any) -> Any:
    try:
        return UUID(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{value!r} is not a UUID") from None


def _resource(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", value):
        raise ValueError(f"{value!r} is no resource name; expected one like nvidia.com/GH100_H100_PCIE")
    return value


#: A known field that nothing is made of yet: absent, null and empty are one, anything in it is refused.
NotConverted = Annotated[list[Any] | dict[str, Any] | None, BeforeValidator(_nothing)]
Quantity = Annotated[int, BeforeValidator(_quantity)]
Name = Annotated[str, AfterValidator(_dns_name)]


class Metadata(_Model):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: Name
    namespace: Name = "default"


class TemplateMetadata(_Model):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class CPUFeature(_Model):
    name: Annotated[str, AfterValidator(_alias_name)]
    policy: Literal["force", "require", "optional", "disable", "forbid"] = "require"


class CPU(_Model):
    """0 stands for "not said", as for KubeVirt."""

    sockets: NonNegativeInt = 0
    cores: NonNegativeInt = 0
    threads: NonNegativeInt = 0
    model: str = "host-model"
    features: Annotated[tuple[CPUFeature, ...], Field(strict=False)] = ()


class Memory(_Model):
    guest: Quantity | None = None


class Resources(_Model):
    """By resource name; the guest's size comes from `cpu` and `memory`, the rest is between the pod and its node."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Machine(_Model):
    type: Annotated[str, AfterValidator(_q35)] = "q35"


class BIOS(_Model):
    useSerial: bool = False


class EFI(_Model):
    secureBoot: bool = True


class Bootloader(_Model):
    bios: BIOS | None = None
    efi: EFI | None = None

    @model_validator(mode="after")
    def _one(self) -> "Bootloader":
        if self.bios is not None and self.efi is not None:
            raise ValueError("has both bios and efi; expected one of them")
        return self


class Firmware(_Model):
    uuid: Annotated[UUID | None, BeforeValidator(_uuid)] = None
    serial: str | None = None
    bootloader: Bootloader = Bootloader()


class HostDevice(_Model):
    """An entry of `gpus` or `hostDevices`: one device of the resource `deviceName`, called `name` in the domain."""

    name: Annotated[str, AfterValidator(_alias_name)]
    deviceName: Annotated[str, AfterValidator(_resource)]


class Devices(_Model):
    gpus: Annotated[tuple[HostDevice, ...], Field(strict=False)] = ()
    hostDevices: Annotated[tuple[HostDevice, ...], Field(strict=False)] = ()
    disks: NotConverted = None
    interfaces: NotConverted = None

    @model_validator(mode="after")
    def _unique_names(self) -> "Devices":
        seen: set[str] = set()
        for device in (*self.gpus, *self.hostDevices):
            if device.name in seen:
                raise ValueError(f"two entries of gpus and hostDevices are called {device.name!r}; rename one of them")
            seen.add(device.name)
        return self


class Domain(_Model):
    cpu: CPU = CPU()
    memory: Memory = Memory()
    resources: Resources = Resources()
    machine: Machine = Machine()
    firmware: Firmware = Firmware()
    devices: Devices = Devices()


class Spec(_Model):
    domain: Domain
    architecture: Literal["amd64"] = "amd64"
    terminationGracePeriodSeconds: NonNegativeInt = 30
    networks: NotConverted = None
    volumes: NotConverted = None


class VirtualMachineInstance(_Model):
    apiVersion: Literal["kubevirt.io/v1"]
    kind: Literal["VirtualMachineInstance"]
    metadata: Metadata
    spec: Spec
    status: Any = None


class Template(_Model):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: Spec


class VirtualMachineSpec(_Model):
    """`runStrategy` and `running` say when a VM runs; that is decided before the launcher starts."""

    template: Template
    runStrategy: Literal["Always", "RerunOnFailure", "Manual", "Halted", "Once"] | None = None
    running: bool | None = None


class VirtualMachine(_Model):
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


_MANIFEST: TypeAdapter[VirtualMachine | VirtualMachineInstance] = TypeAdapter(
    Annotated[VirtualMachine | VirtualMachineInstance, Field(discriminator="kind")]
)


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it, which refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"the key {key.value!r} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_manifest(path: Path) -> VirtualMachineInstance:
    """Read a VirtualMachineInstance, or a VirtualMachine as the instance it would make.

    UserError, in one line that begins with the file and the field's path, for a file that is missing or not YAML and
    for a manifest that says something the launcher does not convert.
    """
    document = _read_yaml(path)
    if not isinstance(document, Mapping):
        raise UserError(f"{path}: expected a VirtualMachine or VirtualMachineInstance, found {_shown(document)}")
    try:
        manifest = _MANIFEST.validate_python(document)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        others = f" (and {len(more)} more)" if more else ""
        raise UserError(f"{path}: {_line(first)}{others}") from error
    return manifest.instance() if isinstance(manifest, VirtualMachine) else manifest


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{path}: is not YAML: {where}{problem}") from error


def _line(error: ErrorDetails) -> str:
    """`spec.domain.devices.gpus[0].name: what is wrong with it`."""
    context = error.get("ctx", {})
    # The first part is the kind, by which pydantic chose between the two models.
    parts = [*error["loc"][error["loc"][:1] in (("VirtualMachine",), ("VirtualMachineInstance",)) :]]
    if error["type"] == "unknown_field":
        parts.append(context["field"])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    match error["type"]:
        case "missing":
            problem = "is missing"
        case "value_error" | "unknown_field":
            problem = error["msg"].removeprefix("Value error, ")
        case "dict_type" | "model_type" | "model_attributes_type":
            problem = f"expected a mapping, found {_shown(error['input'])}"
        case "union_tag_invalid" | "union_tag_not_found":
            where, problem = "kind", "expected VirtualMachine or VirtualMachineInstance"
        case _:
            message = error["msg"]
            problem = f"{message[0].lower()}{message[1:]}, found {_shown(error['input'])}"
    return f"{where}: {problem}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
