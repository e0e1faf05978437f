"""A VirtualMachine with its instance type and its preference filled in, as `virtctl expand` would do it.

common.json has the objects that KubeVirt installs in every cluster, from github.com/kubevirt/common-instancetypes
(Apache-2.0), release v1.7.0; series gn1 is from v1.2.2, the last one with it. tests/common_instancetypes.py writes the
file.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from launcher.fields.objects import Validator
from launcher.manifest.inputs import TypeObject, kind_and_name, names_of
from launcher.manifest.instancetypes import defaults, sizes
from launcher.manifest.instancetypes.draft import Draft, Path
from launcher.manifest.instancetypes.kinds import Instancetype, Preference, PreferenceSpec
from launcher.manifest.instancetypes.sizes import Applied
from launcher.vm.spec import InstancetypeMatcher, Matcher, PreferenceMatcher, VirtualMachineInstance
from program.document import JSONObject
from program.errors import Nonsense, UserError
from program.problem import Problem, excerpt, summary

FILE = pathlib.Path(__file__).with_name("common.json")


def common(kind: str, name: str | None) -> TypeObject | None:
    """Return the object of this kind and name; None if KubeVirt installs none."""
    spec = json.loads(FILE.read_bytes()).get(kind, {}).get(name)
    if name is None or spec is None:
        return None
    value = {"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return TypeObject(value, f"common-instancetypes {'v1.2.2' if name.startswith('gn1.') else 'v1.7.0'}")


#: The field of a VirtualMachine's spec and the flag of the command line that name one, and what is named in it.
_FIELDS: dict[str, type[Matcher]] = {"instancetype": InstancetypeMatcher, "preference": PreferenceMatcher}
_LABEL = "instancetype.kubevirt.io/default-"


class Expanded(NamedTuple):
    """The VM's document with all values filled in, and the origin of each path that the VM itself does not set.

    `used`: the instance type and the preference, as written. `subject` stands before a path of the VM.
    """

    document: JSONObject
    origins: Mapping[Path, str]
    used: tuple[JSONObject, ...]
    warnings: tuple[str, ...]
    subject: str
    instancetype: Instancetype | None
    preference: tuple[PreferenceSpec, Applied] | None

    def refuse_unmet(self, vmi: VirtualMachineInstance) -> None:
        """Raise UserError for a guest that lacks what its preference requires."""
        if self.preference is not None:
            _raise(list(defaults.unmet(vmi, self.instancetype, *self.preference, self.subject)))


def _matchers(spec: Mapping[str, Any]) -> Mapping[str, Matcher]:
    """Return the matchers of an instance type and a preference, by their fields in the VM's spec; {} if one is invalid,
    which reading the VM reports."""
    try:
        return {name: kind.model_validate(spec[name]) for name, kind in _FIELDS.items() if spec.get(name) is not None}
    except ValidationError:
        return {}


def expand(
    vm: JSONObject,
    by_flag: Mapping[str, Sequence[TypeObject]],
    beside: Sequence[TypeObject],
    subject: str,
    check: Validator,
) -> Expanded:
    """Return the VM with the objects that it names in spec.instancetype and spec.preference filled in.

    `by_flag` has the objects in the files of --instancetype and --preference, `beside` those in the VM's own file; the
    ones that KubeVirt installs in every cluster need neither. `subject` stands before a path of the VM in an error.
    UserError for an object that is missing, for an invalid instance type or preference, and for a VM that sets a field
    of its instance type.
    """
    lookups = {
        field: _look_up(field, matcher, vm, by_flag.get(field, ()), beside, subject)
        for field, matcher in _matchers(vm["spec"]).items()
    }
    _raise([lookup for lookup in lookups.values() if isinstance(lookup, Problem)])
    types = {field: lookup for field, lookup in lookups.items() if isinstance(lookup, TypeObject)}
    warnings = [lookup for lookup in lookups.values() if isinstance(lookup, str)]
    if installed := [named for field, named in types.items() if named not in (*by_flag.get(field, ()), *beside)]:
        names = " and ".join(f"{names_of(named.value)[1]} ({named.file})" for named in installed)
        warnings.append(
            f"{subject}spec: as KubeVirt installs them: {names}; a cluster's own are given by a flag or beside"
        )
    draft = Draft(vm)
    if not isinstance(draft.get("domain"), dict):
        types = {}  # reading the VM tells what is wrong with it
    prefers, instancetype, preference = PreferenceSpec(), None, None
    if (named := types.get("preference")) is not None:
        prefers = check(Preference, named.value, named.subject).spec
        preference = prefers, _applied(named)
        defaults.attach(draft, preference[1])
    if (named := types.get("instancetype")) is not None:
        instancetype = check(Instancetype, named.value, named.subject)
        applied = _applied(named)
        _raise(list(sizes.conflicts(draft, applied, subject)))
        try:
            sizes.fill_in(draft, instancetype, applied, prefers)
        except Nonsense as error:
            raise UserError(f"{named.subject}spec.cpu.guest", error.wrong, error.fix) from error
    if preference is not None:
        defaults.fill_in(draft, *preference)
    return Expanded(
        document=draft.document,
        origins=draft.origins,
        used=tuple(named.value for named in types.values()),
        warnings=tuple(warnings),
        subject=subject,
        instancetype=instancetype,
        preference=preference,
    )


def _look_up(
    field: str,
    matcher: Matcher,
    vm: JSONObject,
    by_flag: Sequence[TypeObject],
    beside: Sequence[TypeObject],
    subject: str,
) -> TypeObject | Problem | str:
    """Look for the object that a VM names in spec.`field`: in the flag's file, and beside the VM; without a flag also
    among KubeVirt's own.

    Return the object, a Problem, or a warning that the VM goes without. `subject` stands before the path of a field of
    the VM.
    """
    path = f"{subject}spec.{field}"
    if matcher.inferFromVolume is not None:
        return _inferred(field, matcher, by_flag, path)
    namespace = names_of(vm)[0]
    matching = [named for named in (*by_flag, *beside) if _is_named(matcher, named, namespace)]
    wanted = f"{matcher.wanted} {matcher.name}"
    if len(matching) > 1:
        files = " and ".join(dict.fromkeys(named.file for named in matching))
        return Problem(path, f"names {wanted}, which is {len(matching)} times in {files}", "leave one")
    if matching:
        return matching[0]
    if not by_flag and (installed := common(matcher.wanted, matcher.name)) is not None:
        return installed
    names = tuple(kind_and_name(named.value) for named in by_flag)
    wrong = f"names {wanted}, which is not {f'in the file of --{field}: it has {summary(names)}' if names else 'here'}"
    of = f"-n {namespace} " if namespace and matcher.wanted == matcher.KINDS[1] else ""
    fix = (
        f"get it with `kubectl get {of}{matcher.wanted.lower()} {matcher.name} -o yaml`, and give that with --{field} "
        "FILE, or as a document beside the VM"
    )
    return Problem(path, wrong, fix)


def _inferred(field: str, matcher: Matcher, by_flag: Sequence[TypeObject], path: str) -> TypeObject | Problem | str:
    """Return the only object of the flag's file. KubeVirt takes the name from labels in the cluster, of the volume's
    claim or of the claim's source (pkg/instancetype/infer)."""
    if len(by_flag) == 1:
        return by_flag[0]
    source = f"is inferred from the labels of volume {excerpt(matcher.inferFromVolume)}, which are in the cluster"
    if matcher.inferFromVolumeFailurePolicy == "Ignore":
        without = f"it goes without, as where there is no label {_LABEL}{field}; give it with --{field} FILE"
        return f"{path}: {source}: {without}"
    fix = (
        f"look up the label {_LABEL}{field} of its claim, and write name instead, or give it alone with --{field} FILE"
    )
    return Problem(path, source, fix)


def _is_named(matcher: Matcher, named: TypeObject, namespace: str | None) -> bool:
    """Return whether a VM in this namespace names the object. Without a namespace, an object or a VM may be in any."""
    of, name = names_of(named.value)
    if (named.value.get("kind"), name) != (matcher.wanted, matcher.name):
        return False
    return matcher.wanted == matcher.KINDS[0] or of is None or namespace is None or of == namespace


def _applied(named: TypeObject) -> Applied:
    return Applied(named.kind_and_name, named.value["spec"])


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise UserError.of(problems)
