"""From a user's input to a manifest, or to errors by the path of a field."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from launcher.fields.objects import Below, Model, Object, Refused, Several, dotted, is_list, object_in
from launcher.manifest import inputs
from launcher.manifest.identity import Known, identified, origins
from launcher.manifest.inputs import ManifestFile
from launcher.vm.spec import Named, VirtualMachine, VirtualMachineInstance, VirtualMachineSpec
from launcher.vm.volumes.manifest import is_block
from program.document import JSONObject
from program.errors import Nonsense, UserError, together
from program.problem import MOST_LINES, Problem, excerpt, summary
from program.spelling import meant

if TYPE_CHECKING:  # a start has no time for what no pod has
    from launcher.manifest.pools import Many

_KINDS: Mapping[str, type[VirtualMachine] | type[VirtualMachineInstance]] = {
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstance": VirtualMachineInstance,
}
_LONGEST = 500  # characters of a path, of what is wrong there, of its fix
_EXPECTED = "Input should be "  # what most of pydantic's messages begin with
_UNKNOWN = ("extra_forbidden", "invalid_key")  # pydantic's errors for a field that an object does not have

#: What a value at a path of a document comes from, where the document itself does not say it.
Origins = Mapping[tuple[str | int, ...], str]
_NOTHING = Known()


class ObjectSource(NamedTuple):
    """An object of an input, and the text before its paths in errors."""

    manifest_file: ManifestFile
    item: JSONObject
    subject: str

    def located(self, problem: Problem) -> Problem:
        """Return a problem of the object with the field's line after the file's name, where editors look for it."""
        path = problem.subject.removeprefix(self.subject)
        # What is wrong may begin with the field that the object at the path has it in: an annotation.
        place = self.manifest_file.at(self.item, f"{path}.{problem.wrong}")
        return problem._replace(subject=place + problem.subject.removeprefix(self.manifest_file.file))


class ParsedVM(NamedTuple):
    """A VM of a manifest, parsed. `namespace` is None if no source gives one.

    `documents`: the VM, and the instance type and the preference that it names, each as written. `text`: the file's, if
    it has nothing but this VM in it. `block`: the volumes whose claim is a block device, as far as its template, or the
    claim beside the VM, shows. `notes`: what a user wants to know of how it was read. `many`: set if it is one of the
    VMs of a pool or a replica set. `source`: where it is written, if it was read from a file.
    """

    manifest: VirtualMachine | VirtualMachineInstance
    namespace: str | None
    documents: tuple[JSONObject, ...]
    text: str | None
    block: frozenset[str]
    notes: tuple[str, ...]
    many: "Many | None" = None
    source: ObjectSource | None = None

    @property
    def instance(self) -> VirtualMachineInstance:
        return self.manifest.instance() if isinstance(self.manifest, VirtualMachine) else self.manifest

    def located(self, problem: Problem) -> Problem:
        """Return a problem of a later stage with file and line, if its subject is a path in the instance or the VM."""
        top, field, *_ = (*re.split(r"\W", problem.subject, maxsplit=2), "")
        if self.source is None or top not in ("spec", "metadata"):
            return problem
        if top == "metadata" and field in Named.model_fields:
            return self.source.located(problem._replace(subject=f"{self.source.subject}{problem.subject}"))
        is_of_pool = self.many is not None and self.many.controller == "statefulset"
        is_of_instance = isinstance(self.manifest, VirtualMachine) and field not in VirtualMachineSpec.model_fields
        template = "spec.template." if is_of_instance else ""
        above = f"{self.source.subject}{'spec.virtualMachineTemplate.' if is_of_pool else ''}{template}"
        return self.source.located(problem._replace(subject=f"{above}{problem.subject}"))


def read_vm(
    path: Path, name: str | None = None, types: Mapping[str, Path] | None = None, known: Known = _NOTHING
) -> ParsedVM:
    """Read the one VM of an input, or the one that is called `name`, or `NAMESPACE/NAME`.

    `types`: the files of --instancetype and --preference, by these names. `known`: facts about it from outside the
    manifest. UserError for an input that cannot be read or lacks that VM, and for a manifest with fields that the
    launcher does not convert: a Problem for each, whose subject is the file and the field's path.
    """
    manifest_file = inputs.read_vms(path)
    (vm,) = _picked(manifest_file, name)
    return _read(manifest_file, [vm], types or {}, known)[0]


def vm_in(text: str, known: Known = _NOTHING) -> ParsedVM:
    """Return the one VM in a text of YAML; UserError as for read_vm."""
    manifest_file = inputs.require_vms(inputs.input_in(text.encode(errors="surrogatepass"), "the manifest"))
    return _read(manifest_file, _picked(manifest_file, None), {}, known)[0]


def read_every(
    path: Path, name: str | None = None, types: Mapping[str, Path] | None = None, known: Known = _NOTHING
) -> tuple[ParsedVM, ...]:
    """Read every VM of an input, each by itself, or the one that is called `name`; UserError as for read_vm."""
    manifest_file = inputs.read_vms(path)
    names = [_name(vm) for vm in manifest_file.vms]
    if twice := [called for called in names if names.count(called) > 1]:
        raise UserError(manifest_file.file, f"has two VMs called {twice[0]}", "rename one of them, or leave it out")
    return _read(manifest_file, manifest_file.vms if name is None else _picked(manifest_file, name), types or {}, known)


def reread(parsed: ParsedVM, documents: Sequence[JSONObject]) -> ParsedVM:
    """Return the VM read from changed documents, which are in the order of `parsed.documents`."""
    vm, *types = documents
    file = "the manifest"
    changed = ManifestFile(file=file, text="", vms=(vm,), types=tuple(inputs.TypeObject(each, file) for each in types))
    known = Known(parsed.namespace, parsed.manifest.metadata.name)
    read = _read_vm(changed, vm, {}, f"{file}: ", (), known)
    return read._replace(block=parsed.block, notes=parsed.notes, many=parsed.many)


def _picked(manifest_file: ManifestFile, name: str | None) -> Sequence[JSONObject]:
    """Return the VM of this name, or the only one; UserError for none or several."""
    vms = [vm for vm in manifest_file.vms if name in (None, inputs.names_of(vm)[1], _name(vm))]
    if len(vms) == 1:
        return vms
    names = summary(tuple(map(_name, vms or manifest_file.vms)))
    if not vms:
        raise UserError(f"--name {name}", f"{manifest_file.file} has no VM of that name", f"expected one of {names}")
    raise UserError(manifest_file.file, f"has {len(vms)} VMs: {names}", "pick one with --name")


def _name(vm: JSONObject) -> str:
    namespace, name = inputs.names_of(vm)
    return (f"{namespace}/{name}" if namespace else str(name))[:_LONGEST]


def _read(
    manifest_file: ManifestFile, vms: Sequence[JSONObject], types: Mapping[str, Path], known: Known
) -> tuple[ParsedVM, ...]:
    read = {field: inputs.read_input(path) for field, path in types.items()}
    others = summary(map(inputs.kind_and_name, manifest_file.others))
    of_input = (f"{manifest_file.file}: passed over, as they are no VMs: {others}",) if others else ()
    manifests: list[ParsedVM] = []
    errors: list[UserError] = []
    for vm in vms:
        subject = f"{manifest_file.file}: {_name(vm)}: " if len(manifest_file.vms) > 1 else f"{manifest_file.file}: "
        of_vm = () if manifests else of_input
        source = ObjectSource(manifest_file, vm, subject)
        try:
            manifests.append(_read_vm(manifest_file, vm, read, subject, of_vm, known)._replace(source=source))
        except UserError as error:
            errors.append(_located(error, source, read.values()))
    if errors:
        raise together(errors)
    for field, file in read.items():
        if not any(isinstance(one.manifest, VirtualMachine) and getattr(one.manifest.spec, field) for one in manifests):
            fix = f"write spec.{field}: {{name: ...}} into it, or leave the flag out"
            raise UserError(f"--{field} {file.file}", "the VM names none", fix)
    return tuple(manifests)


def _located(error: UserError, vm: ObjectSource, types: Iterable[ManifestFile]) -> UserError:
    """Return the error with the lines of its fields: the VM's, its instance type's and its preference's."""
    files = (vm.manifest_file, *types)
    sources = [ObjectSource(file, item.value, item.subject) for file in files for item in file.types]
    return error.changed(
        lambda problem: next(
            (each.located(problem) for each in (*sources, vm) if problem.subject.startswith(each.subject)), problem
        )
    )


def _read_vm(
    manifest_file: ManifestFile,
    vm: JSONObject,
    types: Mapping[str, ManifestFile],
    subject: str,
    notes: tuple[str, ...],
    known: Known,
) -> ParsedVM:
    many = None
    if vm["kind"] not in _KINDS:
        # Imported where it is needed, as instance types are: no pod's launcher reads one.
        from launcher.manifest.pools import taken_apart

        vm, subject, many = taken_apart(vm, subject, checked)
    kind = _KINDS[vm["kind"]]
    document = identified(vm, known, subject)
    sources: Origins = origins(known)
    used: tuple[JSONObject, ...] = ()
    expanded = None
    spec = vm["spec"] if kind is VirtualMachine and isinstance(vm.get("spec"), dict) else {}
    if spec.get("instancetype") is not None or spec.get("preference") is not None:
        # Imported where it is needed: few VMs name any, and a start has no time to lose.
        from launcher.manifest.instancetypes.expansion import expand

        files = {field: file.types for field, file in types.items()}
        expanded = expand(document, files, manifest_file.types, subject, checked)
        document, sources, used = expanded.document, {**sources, **expanded.origins}, expanded.used
        notes = (*notes, *expanded.warnings)
    manifest = checked(kind, document, subject, sources)
    if expanded is not None:
        assert isinstance(manifest, VirtualMachine), "no other kind names instance types"
        expanded.refuse_unmet(manifest.instance())
    name = manifest.metadata.name
    if not (vm["metadata"].get("name") or known.name):
        notes = (*notes, f"{subject}metadata.generateName: the VM is called {name} here; write a name for another one")
    return ParsedVM(
        manifest=manifest,
        namespace=document["metadata"].get("namespace") or None,
        documents=(vm, *used),
        text=manifest_file.text if manifest_file.alone and not used and many is None else None,
        block=_block(manifest, manifest_file.block),
        notes=notes,
        many=many,
    )


def _block(manifest: VirtualMachine | VirtualMachineInstance, claims: frozenset[str]) -> frozenset[str]:
    """Return the volumes on one of these claims, or on a template's claim that is a block device."""
    if isinstance(manifest, VirtualMachineInstance):
        volumes = manifest.spec.volumes
    else:
        volumes = manifest.spec.template.spec.volumes
        templates = manifest.spec.dataVolumeTemplates
        claims |= {template.metadata.name for template in templates if is_block(template.spec)}
    return frozenset(volume.name for volume in volumes if volume.claim in claims)


def checked(kind: type[Model], document: JSONObject, subject: str, origins: Origins | None = None) -> Model:
    """Return a document as an object of this kind; UserError with a Problem for each error, whose subject is `subject`
    and a path."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        errors = _each(error)
        problems = [_problem(kind, one, subject, origins or {}) for one in errors[:MOST_LINES]]
        raise UserError.of(problems, left_out=len(errors[MOST_LINES:])) from error


def _each(error: ValidationError) -> list[Mapping[str, Any]]:
    """Return pydantic's errors, with a separate one for each error of several checks of one object.

    Unknown fields come first: they may be why others are missing.
    """
    errors: list[Mapping[str, Any]] = []
    for one in error.errors(include_url=False):
        nonsense = one.get("ctx", {}).get("error")
        each = nonsense.each if isinstance(nonsense, Several) else [nonsense]
        errors += [one] if len(each) == 1 else [{**one, "ctx": {"error": part}} for part in each]
    return sorted(errors, key=lambda one: one["type"] not in _UNKNOWN)


def _problem(kind: type[Object], error: Mapping[str, Any], subject: str, origins: Origins) -> Problem:
    """Return a Problem: `spec.domain.devices.gpus[0].name` after the subject, what is wrong with it, and the fix."""
    parts = list(error["loc"])
    if error["type"] == "invalid_key":
        parts[-1] = str(error["input"])
    if isinstance(below := error.get("ctx", {}).get("error"), Below):
        parts.append(below.path)
    where = dotted(parts) + _origin(parts, origins)
    wrong, fix = _unknown(kind, parts) if error["type"] in _UNKNOWN else _wrong(error)
    return Problem(f"{subject}{_short(where)}", _short(wrong), _short(fix))


def _origin(parts: Sequence[str | int], origins: Origins) -> str:
    """Return ` (spec.gpus of VirtualMachineInstancetype gn1)` for a value that is not from the manifest; else ""."""
    path: list[str | int] = []
    for part in parts:
        path += part.split(".") if isinstance(part, str) else [part]
    lengths = (length for length in range(len(path), 0, -1) if tuple(path[:length]) in origins)
    return next((f" ({origins[tuple(path[:length])]})" for length in lengths), "")


def _short(text: str) -> str:
    """Return the beginning and the end of a long text, so that the line stays readable whatever it quotes."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 100]} ... {text[-100:]}"


def _wrong(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with a field, and the fix: from our check, or from pydantic's message in our words."""
    if isinstance(nonsense := error.get("ctx", {}).get("error"), Nonsense):
        return nonsense.wrong, nonsense.fix
    value, message = excerpt(error["input"]), error["msg"]
    match error["type"]:
        case "missing":
            return "is missing", "add it"
        case "model_type" | "dict_type":
            return f"found {value}", "expected a mapping"
        case "tuple_type":
            return f"found {value}", "expected a list"
        case _ if message.startswith(_EXPECTED):
            expected = message.removeprefix(_EXPECTED)
            return f"found {value}", f"expected {'a number ' * expected.startswith(('less', 'greater'))}{expected}"
        case _:
            return f"{message[0].lower()}{message[1:]}, found {value}", "gpu-launcher schema prints what it may be"


def _unknown(kind: type[Object], location: Sequence[int | str]) -> tuple[str, str]:
    """Return what is wrong with the field at this location, and what to write instead."""
    *way, name = location
    known = list(_accepted(_object_at(kind, way)))
    near = meant(str(name), known)
    elsewhere = _above(kind, way, str(name)) or (None if near else _below(kind, way, str(name)))
    if elsewhere is not None:
        return "is in the wrong place", f"write it as {elsewhere}"
    fix = f"did you mean {near}?" if near else f"known here: {', '.join(known) or 'nothing'}"
    return "not a field that gpu-launcher knows", fix


def _accepted(kind: type[Object]) -> Mapping[str, FieldInfo]:
    """Return an object's fields without the refused ones, which no hint should name."""
    return {
        name: field
        for name, field in kind.model_fields.items()
        if not any(isinstance(mark, Refused) for mark in field.metadata)
    }


def _above(kind: type[Object], way: Sequence[int | str], name: str) -> str | None:
    """Return the path of the nearest field of this name above, in an object on the way. Above a list the name means
    something else: a guest's memory is not that of one of its gpus."""
    for length in range(len(way) - 1, -1, -1):
        if isinstance(way[length], int):
            return None
        if name in _accepted(_object_at(kind, way[:length])):
            return dotted([*way[:length], name])
    return None


def _below(kind: type[Object], way: Sequence[int | str], name: str) -> str | None:
    """Return the path of the only field of this name, if it is below the object on the way and not in a list, whose
    item is unknown. Elsewhere the name means something else: the session of sev is not tdx's."""
    places = list(_places(kind, name))
    is_below = len(places) == 1 and places[0].startswith("".join(f"{part}." for part in way))
    return places[0] if is_below and "[]" not in places[0] else None


def _places(kind: type[Object], name: str) -> Iterator[str]:
    for field, described in _accepted(kind).items():
        if field == name:
            yield name
        if (below := object_in(described.annotation)) is not None:
            item = "[]" * is_list(described.annotation)
            yield from (f"{field}{item}.{place}" for place in _places(below, name))


def _object_at(kind: type[Object], location: Sequence[int | str]) -> type[Object]:
    for part in location:
        if isinstance(part, str):  # and no index of a list
            below = object_in(kind.model_fields[part].annotation)
            assert below is not None, "there is an object in this field, since its fields are checked"
            kind = below
    return kind
