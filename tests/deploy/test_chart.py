"""deploy/chart is made from kustomize's files, and its schema refuses wrong values by name. What helm makes of it, the
lab shows: tests/lab/test_chart.py.

`make test ARGS='--regenerate tests/deploy'` writes its templates and the config's part of its schema; read the diff.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft202012Validator

from tests.deploy.chart import CHART, templates, values_schema
from tests.deploy.test_plugin import VERSION

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
#: Written by hand: what kustomize has not.
BY_HAND = {"NOTES.txt", "validation.yaml", "namespaces.yaml", "quotas.yaml"}


def test_the_templates_and_the_schema_are_those_of_kustomizes_files_and_of_the_program(
    request: pytest.FixtureRequest,
) -> None:
    made = {f"templates/{name}": text for name, text in templates().items()}
    made["values.schema.json"] = json.dumps(values_schema(), indent=2) + "\n"
    if request.config.getoption("--regenerate"):
        for name, text in made.items():
            (CHART / name).write_text(text)
    assert {name: (CHART / name).read_text() for name in made} == made, "run make test ARGS='--regenerate tests/deploy'"
    assert {path.name for path in (CHART / "templates").iterdir()} == {*templates(), *BY_HAND}


def test_the_chart_and_its_image_are_of_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"], VALUES["image"]["tag"]) == (VERSION, VERSION, "")


def _names(
    values: Mapping[str, Any], schema: Mapping[str, Any], place: str = ""
) -> Iterator[tuple[str, set[str], set[str]]]:
    yield place, {*values}, {*schema["properties"]}
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in schema["properties"][name] and value:
            yield from _names(value, schema["properties"][name], f"{place}.{name}")


def test_each_value_has_a_default_and_a_schema_and_the_defaults_are_taken() -> None:
    for place, defaults, known in _names(VALUES, SCHEMA):
        assert defaults | ({"global"} if not place else set()) == known, place
    assert Draft202012Validator(SCHEMA).is_valid(VALUES)


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"offer": [{"device": ["10DE:2204", "10de:1f08"], "resource": "example.com/RTX_3090"}]}},
        {"config": {"offer": [{"vendor": "10de", "pci_class": "0302", "prefix": "example.com"}]}},
        {"arguments": ["--rescan=5", "--log-format=json"]},
        {"resources": {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"cpu": "0.5", "memory": "1e9"}}},
        {"image": {"digest": f"sha256:{'0' * 64}"}},
        {"tenants": {"namespaces": {"ml": ["nvidia.com/L40S-24Q", "gpu-launcher.dev", "amd.com/*"], "_others": []}}},
        {"tenants": {"quotas": {"ml": {"gpu-launcher.dev.deviceclass.resource.k8s.io/devices": 8, "cpu": "64"}}}},
    ],
)
def test_what_the_plugin_and_the_api_server_take_is_taken(values: dict[str, Any]) -> None:
    assert Draft202012Validator(SCHEMA).is_valid(values)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"bin": "never"}, "bin"),
        ({"bind": "always"}, "bind"),
        ({"dra": "true"}, "dra"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"arguments": ["serve"]}, "arguments"),
        ({"fabric": {"library": "libnvfm.so.1"}}, "library"),
        ({"vgpus": {"driver": "run"}}, "driver"),
        ({"config": {"vgpus": [{"vendor": "10de", "type": "x"}]}}, "type"),
        ({"config": {"serv": "dra"}}, "serv"),
        ({"config": {"offer": [{"vendor": "10de", "resorce": "x"}]}}, "resorce"),
        ({"config": {"offer": [{"device": "10de", "withhold": True}]}}, "device"),
        ({"config": {"offer": [{"device": ["10de:2204", "10de"], "withhold": True}]}}, "device"),
        ({"config": {"vgpus": [{"device": "10de", "functions": 2}]}}, "device"),
        ({"config": {"offer": [{"vendor": "10de", "resource": "nodomain"}]}}, "resource"),
        ({"arguments": ["--rescn=5"]}, "arguments"),
        ({"arguments": ["--rescan"]}, "arguments"),
        ({"resources": {"limits": {"memory": "lots"}}}, "memory"),
        ({"resources": {"requests": {"cpu": -1}}}, "cpu"),
        ({"monitoring": {"namespace": "Metrics"}}, "namespace"),
        ({"tenants": {"namespaces": {"ml": "nvidia.com/L40S-24Q"}}}, "ml"),
        ({"tenants": {"namespaces": {"_other": []}}}, "_other"),
        ({"tenants": {"namespaces": {"ml": ["nvidia.com/*-24Q"]}}}, "ml"),
        ({"tenants": {"quotas": {"ml": {"requests.nvidia.com/L40S-24Q": "four"}}}}, "L40S-24Q"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"nodeSelector": {"gpu": True}}, "gpu"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], place: str) -> None:
    (error,) = Draft202012Validator(SCHEMA).iter_errors(values)
    assert place in f"{error.instance_path} {error.message}"
