"""Which instance type and which preference a VM names, and how to get one that is not there."""

from collections.abc import Sequence
from typing import NamedTuple

from launcher.manifest.inputs import TypeObject, called, listed, names_of
from launcher.manifest.quotation import shown
from launcher.manifest.spec import InstancetypeMatcher, Matcher, PreferenceMatcher
from program.document import JSONObject
from program.problem import Problem

#: The field of a VirtualMachine's spec and the flag of the command line that name one, and what is named in it.
FIELDS: dict[str, type[Matcher]] = {"instancetype": InstancetypeMatcher, "preference": PreferenceMatcher}
_LABEL = "instancetype.kubevirt.io/default-"


class Lookup(NamedTuple):
    """What came of looking for one: the object, or the problem, or a warning that it goes without."""

    named: TypeObject | None = None
    problem: Problem | None = None
    warning: str | None = None


def look_up(
    field: str,
    matcher: Matcher,
    vm: JSONObject,
    given: Sequence[TypeObject],
    beside: Sequence[TypeObject],
    subject: str,
) -> Lookup:
    """Look for what a VM names in spec.`field`: among those of the flag's file, and those beside it.

    `subject` is what stands before the path of a field of the VM.
    """
    path = f"{subject}spec.{field}"
    if matcher.inferFromVolume is not None:
        return _inferred(field, matcher, given, path)
    namespace = names_of(vm)[0]
    matching = [named for named in (*given, *beside) if _is_named(matcher, named, namespace)]
    wanted = f"{matcher.wanted} {matcher.name}"
    if len(matching) > 1:
        files = " and ".join(dict.fromkeys(named.file for named in matching))
        return Lookup(problem=Problem(path, f"names {wanted}, which is {len(matching)} times in {files}", "leave one"))
    if matching:
        return Lookup(matching[0])
    there = tuple(called(named.value) for named in given)
    wrong = f"names {wanted}, which is not {f'in the file of --{field}: it has {listed(there)}' if there else 'here'}"
    of = f"-n {namespace} " if namespace and matcher.wanted == matcher.KINDS[1] else ""
    fix = (
        f"get it with `kubectl get {of}{matcher.wanted.lower()} {matcher.name} -o yaml`, and give that with --{field} "
        "FILE, or as a document beside the VM"
    )
    return Lookup(problem=Problem(path, wrong, fix))


def _inferred(field: str, matcher: Matcher, given: Sequence[TypeObject], path: str) -> Lookup:
    """KubeVirt takes the name from the labels of the volume's claim, or of what that is made from (pkg/instancetype/
    infer). They are in the cluster; whoever knows the name gives the file."""
    if len(given) == 1:
        return Lookup(given[0])
    source = f"is inferred from the labels of volume {shown(matcher.inferFromVolume)}, which are in the cluster"
    if matcher.inferFromVolumeFailurePolicy == "Ignore":
        without = f"it goes without, as where there is no label {_LABEL}{field}; give it with --{field} FILE"
        return Lookup(warning=f"{path}: {source}: {without}")
    fix = (
        f"look up the label {_LABEL}{field} of its claim, and write name instead, or give it alone with --{field} FILE"
    )
    return Lookup(problem=Problem(path, source, fix))


def _is_named(matcher: Matcher, named: TypeObject, namespace: str | None) -> bool:
    """Of a namespace's kind, one without a namespace is of any, like a VM without one."""
    of, name = names_of(named.value)
    if (named.value.get("kind"), name) != (matcher.wanted, matcher.name):
        return False
    return matcher.wanted == matcher.KINDS[0] or of is None or namespace is None or of == namespace
