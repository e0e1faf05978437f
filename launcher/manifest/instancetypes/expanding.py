"""A VirtualMachine with its instance type and its preference in it, as `virtctl expand` would make it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from launcher.manifest.inputs import Object as Document
from launcher.manifest.inputs import TypeObject, names_of
from launcher.manifest.instancetypes import preferring, sizing
from launcher.manifest.instancetypes.draft import Draft, Path
from launcher.manifest.instancetypes.kinds import Instancetype, Preference, PreferenceSpec
from launcher.manifest.instancetypes.naming import FIELDS, look_up
from launcher.manifest.instancetypes.sizing import Applied
from launcher.manifest.objects import Object
from launcher.manifest.spec import Matcher, VirtualMachineInstance
from program.errors import Nonsense, UserError
from program.problem import Problem

Model = TypeVar("Model", bound=Object)


class Check(Protocol):
    """Read a document as an object; UserError, which begins with `subject`, if it is none."""

    def __call__(self, kind: type[Model], document: Document, subject: str) -> Model: ...


class Expanded(NamedTuple):
    """The VM's document with everything in it, and where each path comes from that the VM itself does not say.

    `used`: the instance type and the preference, as they were written. `subject` stands before a path of the VM.
    """

    document: Document
    origins: Mapping[Path, str]
    used: tuple[Document, ...]
    warnings: tuple[str, ...]
    subject: str
    instancetype: Instancetype | None
    preference: tuple[PreferenceSpec, Applied] | None

    def refuse_unmet(self, vmi: VirtualMachineInstance) -> None:
        """UserError for a guest that lacks what its preference requires."""
        if self.preference is not None:
            _raise(list(preferring.unmet(vmi, self.instancetype, *self.preference, self.subject)))


def _matchers(spec: Mapping[str, Any]) -> Mapping[str, Matcher]:
    """Return what a VM names, by the fields of its spec; nothing if one is wrong, which reading the VM tells."""
    try:
        return {name: kind.model_validate(spec[name]) for name, kind in FIELDS.items() if spec.get(name) is not None}
    except ValidationError:
        return {}


def expand(
    vm: Document,
    given: Mapping[str, Sequence[TypeObject]],
    beside: Sequence[TypeObject],
    subject: str,
    check: Check,
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
    _raise([lookup for lookup in lookups.values() if isinstance(lookup, Problem)])
    warnings = tuple(lookup for lookup in lookups.values() if isinstance(lookup, str))
    types = {field: lookup for field, lookup in lookups.items() if isinstance(lookup, TypeObject)}
    draft = Draft(vm)
    if not isinstance(draft.get("domain"), dict):
        types = {}  # reading the VM tells what is wrong with it
    prefers, instancetype, preference = PreferenceSpec(), None, None
    if (named := types.get("preference")) is not None:
        prefers = check(Preference, named.value, _subject(named)).spec
        preference = prefers, _applied(named)
        preferring.attach(draft, preference[1])
    if (named := types.get("instancetype")) is not None:
        instancetype = check(Instancetype, named.value, _subject(named))
        applied = _applied(named)
        _raise(list(sizing.conflicts(draft, applied, subject)))
        try:
            sizing.fill_in(draft, instancetype, applied, prefers)
        except Nonsense as error:
            raise UserError(f"{_subject(named)}spec.cpu.guest", error.wrong, error.fix) from error
    if preference is not None:
        preferring.fill_in(draft, *preference)
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
    return Applied(_called(named), named.value["spec"])


def _called(named: TypeObject) -> str:
    return f"{named.value['kind']} {names_of(named.value)[1]}"


def _subject(named: TypeObject) -> str:
    """Return what stands before a path in the object: its file, kind and name."""
    return f"{named.file}: {_called(named)}: "


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise UserError.of(problems)
