"""The alerts and the dashboard ask for metrics that a scrape of the plugin has, and each alert has its page."""

import asyncio
import json
import re
import tomllib
from functools import reduce
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pci.slices import DRIVER
from plugin.cards.config import Config, Fabric
from plugin.cards.names import PCIIDs
from plugin.device_plugin.monitoring import monitoring
from plugin.watch.watch import Sources, Watch
from program.ports import HTTPPort
from tests.conftest import Machine
from tests.launcher.metrics.scraping import whole_page
from tests.plugin.daemon import fetch, free_port
from tests.plugin.reader import new_reader
from tests.processes import ROOT

ALERTS = ROOT / "deploy/plugin/components/alerts"
RULES = [
    rule
    for group in yaml.safe_load((ALERTS / "prometheusrule.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
HOURS = yaml.safe_load((ROOT / "deploy/plugin/components/hours/hours.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/plugin/components/dashboard/dashboard.json").read_text())
#: As Grafana asks for all nodes and all namespaces, in the last hour.
VARIABLES = {"$node": ".*", "$namespace": ".*", "$__range": "1h"}
QUERIES = [
    reduce(lambda text, each: text.replace(*each), VARIABLES.items(), target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
#: Of a device that somebody has, and of what a guest tells.
IN_USE = re.compile(r"gpu:|gpu_launcher_guest_")
#: Of the series that Prometheus makes of a scrape, and by the PodMonitor of VMs.
OF_PROMETHEUS = {"instance", "vm", "node", "namespace"}
RUNBOOKS = ROOT / "docs/runbooks"


@pytest.fixture
def scraped(machine: Machine, tmp_path: Path, pci_ids: PCIIDs) -> dict[str, set[str]]:
    """What a plugin with DRA and a Fabric Manager serves, and a VM: the samples, with the names of their labels."""

    async def read_config() -> Config:
        return Config(fabric=Fabric())

    sources = Sources(
        sys=machine("two-rtx-3090"),
        dev=tmp_path,
        state=tmp_path,
        reader=new_reader(),
        pod_resources=tmp_path / "none",
        names=pci_ids,
        config=None,
        read_config=read_config,
        rescan=60,
    )

    async def scrape() -> str:
        with sources.reader.listening(lambda: None, lambda: None):
            watch = await Watch.begin(sources, asyncio.Event())
            watch.counters.watched[DRIVER] = True
            port = free_port()
            async with monitoring(watch, metrics=HTTPPort("127.0.0.1", port), health=None):
                return (await asyncio.to_thread(fetch, port, "/metrics"))[1]

    families = text_string_to_metric_families(asyncio.run(scrape()) + whole_page())
    samples = [(family, sample) for family in families for sample in [*family.samples]]
    found: dict[str, set[str]] = {family.name: set() for family, _ in samples}
    for _, sample in samples:
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def metrics_of(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, with the labels that it asks for."""
    return {
        name: {*re.findall(r"(\w+)\s*[=!]", selectors)}
        for name, selectors in re.findall(r"\b(gpu_(?:plugin|launcher)_\w+)(\{[^}]*\})?", expression)
    }


def test_alerts_and_dashboard_ask_for_what_is_served_and_the_page_of_metrics_has_all(
    scraped: dict[str, set[str]],
) -> None:
    for expression in (*(rule["expr"] for rule in RULES), *QUERIES):
        asked = metrics_of(expression)
        assert asked or "gpu:" in expression, expression
        grouped = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
        for name, labels in asked.items():
            assert (labels | grouped) - OF_PROMETHEUS <= scraped[name], expression
    named = {*re.findall(r"`(gpu_plugin_\w+)", (ROOT / "docs/gpu-plugin.md").read_text())}
    # A metric without samples on this machine has no family in the scrape.
    empty = {"gpu_plugin_device_in_use", "gpu_plugin_partition", "gpu_plugin_pcie_errors_total"}
    plugins = {name for name in scraped if name.startswith("gpu_plugin_")}
    families = {re.sub("_(bucket|count|sum|created)$", "", name) for name in plugins}
    assert named - empty == {name for name in families if f"{name}_total" not in families}


def test_each_panel_says_what_it_shows_and_is_of_the_chosen_nodes_or_namespaces() -> None:
    for panel in DASHBOARD["panels"]:
        assert panel["description"].endswith("."), panel["title"]
        for target in panel["targets"]:
            assert "$node" in target["expr"] or "$namespace" in target["expr"], panel["title"]
    places = [tuple(panel["gridPos"].values())[:2] for panel in DASHBOARD["panels"]]
    assert len({*places}) == len(places), "one covers another"
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "node", "namespace"}


def test_the_rules_for_hours_ask_for_what_is_served_and_for_each_other(scraped: dict[str, set[str]]) -> None:
    rules = [rule for group in HOURS["spec"]["groups"] for rule in group["rules"]]
    of_ours = {rule["record"] for rule in rules}
    asked = {name for rule in rules for name in re.findall(r"gpu:\w+", rule["expr"])}
    assert asked <= of_ours
    assert {name for query in QUERIES for name in re.findall(r"gpu:\w+", query)} <= of_ours
    for rule in rules:
        assert metrics_of(rule["expr"]).keys() <= {*scraped, "gpu_plugin_device_in_use"}, rule["record"]


def test_each_alert_has_a_page_with_its_meaning_impact_diagnosis_and_mend() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    assert {path.stem for path in RUNBOOKS.iterdir()} == {rule["alert"] for rule in RULES}
    for rule in RULES:
        page = RUNBOOKS / f"{rule['alert']}.md"
        assert rule["annotations"]["runbook_url"] == f"{source}/blob/main/{page.relative_to(ROOT)}"
        headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        assert headings == [rule["alert"], "Meaning", "Impact", "Diagnosis", "Mend"]
