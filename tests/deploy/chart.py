"""deploy/chart's templates and schema, made from what kustomize applies, so that there is one source of both.

A component's patches become conditions: what a patch adds stands between `if` and `end`. The chart's values stand where
the same default is in kustomize's files; an AssertionError says where they differ.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import yaml

from plugin.config_file import schema
from plugin.startup import ServeFlags
from program.log import LogFlags
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
WHEN_CLAIMED = 'eq .Values.bind "when-claimed"'
#: What patches deploy/plugin, in kustomize's order, and the values with which it does.
PATCHES: Mapping[str, str] = {
    "dra": ".Values.dra",
    "plugin/components/seccomp": ".Values.seccomp",
    "plugin/components/vgpus": ".Values.vgpus.enabled",
    "plugin/components/bind": 'eq .Values.bind "at-start"',
    "plugin/components/fabric": ".Values.fabric.enabled",
    "plugin/components/module-ids": ".Values.fabric.moduleIds",
    "dra/components/when-claimed": WHEN_CLAIMED,
}
SECCOMP = "plugin/components/seccomp/vm.json"
#: What is there as it is or not at all.
WHOLE: Mapping[str, str] = {
    "dra/admission.yaml": ".Values.dra",
    "dra/deviceclasses.yaml": ".Values.dra",
    "plugin/components/pod-monitor/podmonitor.yaml": ".Values.monitoring.podMonitor",
    "plugin/components/pod-monitor/podmonitor-vms.yaml": ".Values.monitoring.podMonitor",
    "plugin/components/alerts/prometheusrule.yaml": ".Values.monitoring.alerts",
    "plugin/components/hours/hours.yaml": ".Values.monitoring.hours",
    "tenants/namespaces-policy.yaml": ".Values.tenants.enabled",
    "tenants/team-policy.yaml": ".Values.tenants.enabled",
    "tenants/tolerations/team-tolerations.yaml": ".Values.tenants.tolerations",
    "roles/roles.yaml": ".Values.roles",
}
DASHBOARD = "plugin/components/dashboard"
_HEAD = "{{{{- /* From deploy/{}, by `make test ARGS='--regenerate tests/deploy'`: change it there. */ -}}}}\n"
_IMAGE = (
    "{{ .Values.image.repository }}"
    "{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}"
)
_NAMESPACE = "{{ .Release.Namespace }}"
_POD = "spec.template.spec"
_BOUND = "    bind: when-claimed\n"


@dataclass(frozen=True)
class If:
    """A key's value or an item that is there where one of the conditions holds."""

    conditions: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Choice:
    """A value that is another one where one of the conditions holds."""

    conditions: tuple[str, ...]
    value: Any
    otherwise: Any


@dataclass(frozen=True)
class Value:
    """A value of the chart's, by its name."""

    name: str
    is_scalar: bool


@dataclass(frozen=True)
class Items:
    """The items or keys of a value of the chart's, beside others."""

    name: str


def templates() -> dict[str, str]:
    """Return the generated templates by name."""
    daemon_set, policy, account = (
        _at(
            _patched(_objects(f"plugin/{name}.yaml")[0]),
            "metadata",
            lambda names: {**names, "namespace": "kube-system"},
        )
        for name in ("daemonset", "networkpolicy", "serviceaccount")
    )
    rights = "---\n".join(_text(_patched(rule)) for rule in _objects("dra/rbac.yaml"))
    made = {
        "configmap.yaml": _config_map("gpu-plugin", "config.yaml", _config()),
        "cordons.yaml": _in_namespace(_read("plugin/cordons.yaml")),
        "dashboard.yaml": _if(".Values.monitoring.dashboard", _dashboard()),
        "daemonset.yaml": _text(_with_values(daemon_set)),
        "networkpolicy.yaml": _if(".Values.networkPolicy", _text(_with_sources(policy))),
        "seccomp.yaml": _if(".Values.seccomp", _config_map("gpu-plugin-seccomp", "vm.json", _literal(SECCOMP))),
        "rbac.yaml": _if(".Values.dra", rights),
        "serviceaccount.yaml": _text(account),
        **{name.rpartition("/")[2]: _if(condition, _in_namespace(_read(name))) for name, condition in WHOLE.items()},
    }
    return {name: _HEAD.format(_source(name)) + text for name, text in made.items()}


def values_schema() -> dict[str, Any]:
    """Return the schema in deploy/chart, with that of gpu-plugin's config in it, and the flags of its daemon."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    config = schema()
    found["$defs"] = config.pop("$defs")
    found["properties"]["config"] = config
    flags = [f.name.replace("_", "-") for kind in (ServeFlags, LogFlags) for f in fields(kind)]
    found["properties"]["arguments"]["items"]["pattern"] = f"^--({'|'.join(sorted(flags))})=."
    return found


def _source(template: str) -> str:
    return next((name for name in WHOLE if name.endswith(f"/{template}")), "plugin and deploy/dra")


def _read(name: str) -> str:
    return (DEPLOY / name).read_text()


def _in_namespace(text: str) -> str:
    return text.replace("kube-system", _NAMESPACE)


def _if(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(_read(name)))


def _patched(tree: Any) -> Any:
    """Return an object with all patches of its kind."""
    kind = tree["kind"]
    for directory, condition in PATCHES.items():
        for patch in yaml.safe_load(_read(f"{directory}/kustomization.yaml"))["patches"]:
            content = yaml.safe_load(_read(f"{directory}/{patch['path']}"))
            if isinstance(content, list) and kind == patch["target"]["kind"]:
                for operation in content:
                    tree = _operated(tree, operation, condition)
            elif isinstance(content, dict) and kind == content["kind"]:
                tree = _merged(tree, content, condition)
    return tree


def _merged(base: Any, patch: Any, condition: str) -> Any:
    """Return the base with a strategic merge patch; kustomize puts new items first."""
    match base, patch:
        case If(), _:
            # What one of them has and the other has not would be there for both.
            assert base.value == patch or base.value.keys() == patch.keys(), (
                f"{base.value} in one, {patch} in the other"
            )
            return If((*base.conditions, condition), _merged(base.value, patch, condition))
        case Choice(), _:
            _same(base.value, patch)
            return Choice((*base.conditions, condition), patch, base.otherwise)
        case dict(), dict():
            empty = {key: type(value)() for key, value in patch.items() if isinstance(value, dict | list)}
            return base | {
                key: _merged({**empty, **base}[key], value, condition)
                if key in {**empty, **base}
                else If((condition,), value)
                for key, value in patch.items()
            }
        case list(), list():
            items = {_identity(item): item for item in patch}
            known = {_identity(item) for item in base}
            new = [If((condition,), item) for name, item in items.items() if name not in known]
            return new + [
                _merged(item, items[name], condition) if (name := _identity(item)) in items else item for item in base
            ]
        case _:
            return base if base == patch else Choice((condition,), patch, base)


def _identity(item: Any) -> str:
    """By what Kubernetes tells the items of a list from each other."""
    item = item.value if isinstance(item, If) else item
    return str(item.get("mountPath") or item.get("name") or item) if isinstance(item, dict) else str(item)


def _operated(tree: Any, operation: Mapping[str, Any], condition: str) -> Any:
    """Return the tree with an operation of a JSON patch."""
    place, value = operation["path"].strip("/").replace("/", "."), operation.get("value")
    if operation["op"] == "add":
        assert place.endswith(".-")
        return _at(tree, place.removesuffix(".-"), lambda items: [*items, If((condition,), value)])
    is_test = operation["op"] == "test"
    return _at(tree, place, lambda found: _same(found, value) if is_test else Choice((condition,), value, found))


def _at(tree: Any, place: str, change: Callable[[Any], Any]) -> Any:
    """Return the tree with what is at a place, like `spec.containers.0`, changed."""
    if not place:
        return change(tree)
    if isinstance(tree, If):
        return If(tree.conditions, _at(tree.value, place, change))
    head, _, rest = place.partition(".")
    if isinstance(tree, list):
        return [_at(item, rest, change) if str(number) == head else item for number, item in enumerate(tree)]
    return {**tree, head: _at(tree[head], rest, change)}


def _same(found: Any, expected: Any) -> Any:
    assert found == expected, f"{found} in one place, {expected} in the other"
    return found


def _value(name: str) -> Callable[[Any], Value]:
    """Return what puts a value of the chart's in the place of its default."""

    def change(found: Any) -> Value:
        default = yaml.safe_load(_read("chart/values.yaml"))
        for key in name.split("."):
            default = default[key]
        return Value(name, not isinstance(_same(found, default), dict))

    return change


def _items(name: str) -> If:
    return If((f".Values.{name}",), Items(name))


def _with_values(daemon_set: Any) -> Any:
    """Return the DaemonSet with the chart's values in it."""
    secrets = "image.pullSecrets"
    volumes = [_identity(volume) for volume in daemon_set["spec"]["template"]["spec"]["volumes"]]
    for place, change in (
        (_POD, lambda pod: {"imagePullSecrets": If((f".Values.{secrets}",), Value(secrets, is_scalar=False)), **pod}),
        (f"{_POD}.nodeSelector", lambda labels: {**labels, "more": _items("nodeSelector")}),
        (f"{_POD}.containers.0.args", lambda items: [*items, _items("arguments")]),
        (f"{_POD}.containers.0.resources", _value("resources")),
        (f"{_POD}.volumes.{volumes.index('libnvfm')}.hostPath.path", _value("fabric.library")),
        (f"{_POD}.volumes.{volumes.index('driver')}.hostPath.path", _value("fabric.driver")),
        (f"{_POD}.volumes.{volumes.index('vgpu-driver')}.hostPath.path", _value("vgpus.driver")),
    ):
        daemon_set = _at(daemon_set, place, change)
    return daemon_set


def _with_sources(policy: Any) -> Any:
    """Return the NetworkPolicy with the namespace of the chart's values."""
    labels = "spec.ingress.0.from.0.namespaceSelector.matchLabels"
    named = _value("monitoring.namespace")
    return _at(policy, labels, lambda found: {key: named(value) for key, value in found.items()})


def _config_map(name: str, file: str, content: str, labels: str = "") -> str:
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: {_NAMESPACE}\n{labels}"
        f"data:\n  {file}: |\n{content}"
    )


def _dashboard() -> str:
    """Return the dashboard's ConfigMap. Grafana's legends are in the braces of helm's templates."""
    (generator,) = yaml.safe_load(_read(f"{DASHBOARD}/kustomization.yaml"))["configMapGenerator"]
    labels = textwrap.indent(yaml.safe_dump({"labels": generator["options"]["labels"]}), "  ")
    (file,) = generator["files"]
    content = _literal(f"{DASHBOARD}/{file}").replace("{{", '{{ "{{" }}')
    return _config_map(generator["name"], file, content, labels)


def _config() -> str:
    """Return the config in a ConfigMap: the value, or the file of deploy/plugin or deploy/dra."""
    return (
        "{{- if .Values.config }}\n    {{- toYaml .Values.config | nindent 4 }}\n"
        f"{{{{- else if .Values.dra }}}}\n{_literal('dra/config.yaml')}{_if(WHEN_CLAIMED, _BOUND)}"
        f"{{{{- else }}}}\n{_literal('plugin/config.yaml')}{{{{- end }}}}\n"
    )


def _literal(name: str) -> str:
    return textwrap.indent(_read(name), "    ")


def _text(tree: Any) -> str:
    return _in_namespace("".join(f"{line}\n" for line in _lines(tree, 0, ())))


def _lines(tree: Any, depth: int, known: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a mapping or a list that is under the `known` conditions."""
    entries = list(tree.items()) if isinstance(tree, dict) else [(None, item) for item in tree]
    for conditions, group in groupby(entries, lambda entry: _conditions(entry[1])):
        inner = conditions or known
        lines = [line for key, value in group for line in _entry(key, _bare(value), depth, inner)]
        yield from _under(conditions, lines) if conditions and conditions != known else lines


def _under(conditions: tuple[str, ...], lines: list[str]) -> list[str]:
    return [f"{{{{- if {_either(conditions)} }}}}", *lines, "{{- end }}"]


def _either(conditions: tuple[str, ...]) -> str:
    return conditions[0] if len(conditions) == 1 else "or " + " ".join(f"({one})" for one in conditions)


def _conditions(value: Any) -> tuple[str, ...]:
    """Return under which conditions a value is there at all: (), if it always is."""
    match value:
        case If():
            return value.conditions
        case dict() | list() if value:
            parts = [_conditions(part) for part in (value.values() if isinstance(value, dict) else value)]
            return tuple(dict.fromkeys(one for part in parts for one in part)) if all(parts) else ()
    return ()


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, If) else value


def _entry(key: str | None, value: Any, depth: int, known: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a key with its value, or of an item."""
    indent, deeper = " " * depth, depth + 2
    start = f"{indent}-" if key is None else f"{indent}{key}:"
    match value:
        case Items():
            yield f"{indent}{{{{- toYaml .Values.{value.name} | nindent {depth} }}}}"
        case Value(is_scalar=True):
            yield f"{start} {{{{ .Values.{value.name} | quote }}}}"
        case Value():
            yield from (start, f"{indent}  {{{{- toYaml .Values.{value.name} | nindent {deeper} }}}}")
        case Choice() if isinstance(value.value, dict):
            then, otherwise = (_lines(mapping, deeper, known) for mapping in (value.value, value.otherwise))
            yield from (
                start,
                f"{{{{- if {_either(value.conditions)} }}}}",
                *then,
                "{{- else }}",
                *otherwise,
                "{{- end }}",
            )
        case Choice():
            one, other = _scalar(value.value), _scalar(value.otherwise)
            yield f"{start} {{{{ if {_either(value.conditions)} }}}}{one}{{{{ else }}}}{other}{{{{ end }}}}"
        case dict() | list() if value and key is not None:
            yield from (start, *_lines(value, depth if isinstance(value, list) else deeper, known))
        case dict() if value:
            first, *others = _lines(value, deeper, known)
            yield from (f"{start} {first.strip()}", *others)
        case _:
            yield f"{start} {_IMAGE if key == 'image' else _scalar(value)}"


def _scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return re.sub(r"\n(\.\.\.\n)?$", "", text)
