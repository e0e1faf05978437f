"""Each alert of deploy/plugin/components/alerts fires, and does not: Debian's promtool says when."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.processes import ROOT

RULES = yaml.safe_load((ROOT / "deploy/plugin/components/alerts/prometheusrule.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
_REFUSED = 'gpu_plugin_allocations_total{outcome="refused"}'
_FAILED = 'gpu_plugin_bind_duration_seconds_count{outcome="failed"}'
#: By alert: the series and a value a minute for which it fires within half an hour, and the same for which it does not.
SERIES = {
    "GPUPluginSeesNoNode": (("gpu_plugin_sees_node", "0x60"), ("gpu_plugin_sees_node", "1x20 0 1x40")),
    "GPUPluginSeesNoPods": (("gpu_plugin_sees_pods", "0x60"), ("gpu_plugin_sees_pods", "1x20 0 1x40")),
    "GPUPluginSeesNoFabric": (("gpu_plugin_sees_fabric", "0x60"), ("gpu_plugin_sees_fabric", "1x20 0 1x40")),
    "GPUPluginNotRegistered": (("gpu_plugin_registered", "0x60"), ("gpu_plugin_registered", "1x20 0 1x40")),
    "GPUPluginDeviceUnhealthy": (
        ('gpu_plugin_device{state="unhealthy"}', "1x60"),
        ('gpu_plugin_device{state="withheld"}', "1x60"),
    ),
    "GPUPluginAllocationRefused": ((_REFUSED, "0x20 1 2 3x40"), (_REFUSED, "0x20 1x40")),
    "GPULauncherCardErrors": (
        ('gpu_launcher_pci_errors_total{error="fatal"}', "7x20 8x40"),
        ('gpu_launcher_pci_errors_total{error="correctable"}', "0+1x60"),
    ),
    "GPULauncherDiskError": (
        ('gpu_launcher_vm_state{state="paused",reason="ioerror"}', "1x60"),
        ('gpu_launcher_vm_state{state="paused",reason="user"}', "1x60"),
    ),
    "GPUPluginBindFailed": ((_FAILED, "0x20 1x40"), (_FAILED.replace("failed", "done"), "0+1x60")),
}


def _case(alert: str, series: str, values: str, *, fires: bool) -> dict[str, Any]:
    rule = ALERTS[alert]
    labels = dict(each.replace('"', "").split("=") for each in series.rstrip("}").partition("{")[2].split(",") if each)
    told = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": rule["annotations"]}
    return {
        "name": f"{alert} {'fires' if fires else 'does not'}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [
            {"eval_time": "4m", "alertname": alert, "exp_alerts": []},
            {"eval_time": "30m", "alertname": alert, "exp_alerts": [told] if fires else []},
        ],
    }


def test_each_alert_fires_and_does_not(tmp_path: Path) -> None:
    assert ALERTS.keys() == SERIES.keys()
    (tmp_path / "rules.yaml").write_text(json.dumps(RULES))
    cases = [
        _case(alert, *series, fires=fires)
        for alert, both in SERIES.items()
        for series, fires in zip(both, (True, False), strict=True)
    ]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(json.dumps(document))
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
