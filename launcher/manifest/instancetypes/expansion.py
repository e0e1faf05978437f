"""A VirtualMachine with its instance type and its preference in it, as `virtctl expand` would make it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from launcher.manifest.inputs import TypeObject
from launcher.manifest.instancetypes import defaults, sizes
from launcher.manifest.instancetypes.draft import Draft, Path
from launcher.manifest.instancetypes.kinds import Instancetype, Preference, PreferenceSpec
from launcher.manifest.instancetypes.lookup import FIELDS, look_up
from launcher.manifest.instancetypes.requirements import unmet
from launcher.manifest.instancetypes.sizes import Applied
from launcher.manifest.objects import Object
from launcher.manifest.spec import Matcher, VirtualMachineInstance
from program.document import JSONObject
from program.errors import Nonsense, UserError
from program.problem import Problem

Model = TypeVar("Model", bound=Object)


class Validator(Protocol):
    """Read a document as an object; UserError, which begins with `subject`, if it is none."""

    def __call__(self, kind: type[Model], document: JSONObject, subject: str) -> Model: ...


class Expanded(NamedTuple):
    """The VM's document with everything in it, and where each path comes from that the VM itself does not say.

    `used`: the instance type and the preference, as they were written. `subject` stands before a path of the VM.
    """

    document: JSONObject
    origins: Mapping[Path, str]
    used: tuple[JSONObject, ...]
    warnings: tuple[str, ...]
    subject: str
    instancetype: Instancetype | None
    preference: tuple[PreferenceSpec, Applied] | None

    def refuse_unmet(self, vmi: VirtualMachineInstance) -> None:
        """UserError for a guest that lacks what its preference requires."""
        if self.preference is not None:
            _raise(list(unmet(vmi, self.instancetype, *self.preference, self.subject)))


def _matchers(spec: Mapping[str, Any]) -> Mapping[str, Matcher]:
    """Return what a VM names, by the fields of its spec. One that makes no sense is left to who reads the VM."""
    try:
        return {name: kind.model_validate(spec[name]) for name, kind in FIELDS.items() if spec.get(name) is not None}
    except ValidationError:
        return {}


def expand(
    vm: JSONObject,
    given: Mapping[str, Sequence[TypeObject]],
    beside: Sequence[TypeObject],
    subject: str,
    check: Validator,
) -> Expanded:
    """Return the VM with what it names in spec.instancetype and spec.preference filled in.

    `given` has what is in the files of --instancetype and --preference, `beside` what is in the VM's own. `subject`
    stands before a path of the VM in an error. UserError for what is named and not there, for an instance type or a
    preference that makes no sense, and for a VM that says what its instance type says.
    """
    lookups = {
        field: look_up(field, matcher, vm, given.get(field, ()), beside, subject)
        for field, matcher in _matchers(vm["spec"]).items()
    }
    _raise([lookup.problem for lookup in lookups.values() if lookup.problem is not None])
    warnings = tuple(lookup.warning for lookup in lookups.values() if lookup.warning is not None)
    types = {field: lookup.named for field, lookup in lookups.items() if lookup.named is not None}
    draft = Draft(vm)
    if not isinstance(draft.get("domain"), dict):
        types = {}  # who reads the VM says what is wrong with it
    prefers, instancetype, preference = PreferenceSpec(), None, None
    if (named := types.get("preference")) is not None:
        prefers = check(Preference, named.value, _subject(named)).spec
        preference = prefers, _applied(named)
        defaults.attach(draft, preference[1])
    if (named := types.get("instancetype")) is not None:
        instancetype = check(Instancetype, named.value, _subject(named))
        applied = _applied(named)
        _raise(list(sizes.conflicts(draft, applied, subject)))
        try:
            sizes.fill_in(draft, instancetype, applied, prefers)
        except Nonsense as error:
            raise UserError(f"{_subject(named)}spec.cpu.guest", error.wrong, error.fix) from error
    if preference is not None:
        defaults.fill_in(draft, *preference)
    return Expanded(
        document=draft.document,
        origins=draft.origins,
        used=tuple(named.value for named in types.values()),
        warnings=warnings,
        subject=subject,
        instancetype=instancetype,
        preference=preference,
    )


def _applied(named: TypeObject) -> Applied:
    return Applied(_called(named), named.value["spec"] or {})


def _called(named: TypeObject) -> str:
    return f"{named.value['kind']} {named.value['metadata']['name']}"


def _subject(named: TypeObject) -> str:
    """An object's file, kind and name, in front of a path in it."""
    return f"{named.file}: {named.value['kind']} {_name(named)}: "


def _name(named: TypeObject) -> str:
    metadata = named.value.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise UserError.of(problems)
