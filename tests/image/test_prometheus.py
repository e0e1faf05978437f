"""Debian's Prometheus scrapes a plugin that has every trouble, and a VM's pod: the alerts fire, and each query of the
dashboard has an answer.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from launcher.metrics.listener import serving_metrics
from launcher.runtime.vm import Phase
from program.ports import HTTPPort
from tests.conftest import Machine
from tests.deploy.test_monitoring import IN_USE, QUERIES
from tests.image.test_alerts import ALERTS
from tests.kernel import aer, bind
from tests.launcher import kernels
from tests.launcher.metrics.test_qemu import with_disk
from tests.launcher.runtime.test_life import heard, living, plan
from tests.plugin.daemon import fetch, free_port, wait_until
from tests.plugin.dra.cluster import running_cluster

#: Within which Prometheus has asked twice, and decided.
_SOON = 60


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def asked(self, path: str, **query: str) -> Any:
        status, text = fetch(self._port, f"/api/v1/{path}?{urlencode(query)}")
        return json.loads(text)["data"] if status == 200 else None

    def has(self, query: str) -> bool:
        return bool((self.asked("query", query=query) or {"result": []})["result"])

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of the alerts that fire, by their names."""
        alerts = (self.asked("alerts") or {"alerts": []})["alerts"]
        return {each["labels"]["alertname"]: each["labels"] for each in alerts if each["state"] == "firing"}


@contextmanager
def prometheus(directory: Path, targets: dict[str, int]) -> Iterator[Prometheus]:
    """Prometheus with our rules, which wait for nothing here; `targets` are ports of 127.0.0.1 by the label `vm`."""
    at_once = [{"name": "ours", "rules": [{**rule, "for": "0s"} for rule in ALERTS.values()]}]
    (directory / "rules.yaml").write_text(json.dumps({"groups": at_once}))
    scraped = [{"targets": [f"127.0.0.1:{port}"], "labels": {"vm": vm}} for vm, port in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "ours", "static_configs": scraped}],
    }
    (directory / "prometheus.yaml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()


#: Without a kubelet and a Fabric Manager.
_CONFIG = "serve: dra\nbind: when-claimed\nfabric: {manager: 127.0.0.1:1}\n"
_CARD = """
<hostdev type="pci"><source><address domain="0x0" bus="0x1" slot="0x0" function="0x0"/></source></hostdev></devices>
"""
_FROM_THE_START = {"GPUPluginSeesNoPods", "GPUPluginSeesNoFabric", "GPUPluginNotRegistered"}


def test_the_alerts_fire_and_each_query_of_the_dashboard_has_an_answer(
    copied_machine: Machine, short_dir: Path, tmp_path: Path, embedded_uri: str
) -> None:
    sys, of_plugin, of_vm = copied_machine("two-rtx-3090"), free_port(), free_port()
    aer(sys, "0000:01:00.0", correctable=1)
    planned = with_disk(plan(tmp_path, embedded_uri, kernel=kernels.IGNORES), tmp_path / "disk.img")
    with_card = planned.xml.replace("</devices>", _CARD)  # for its metrics: QEMU has no card
    with (
        running_cluster(short_dir, sys) as cluster,
        cluster.driver(_CONFIG, "--state", tmp_path, "--metrics", f"127.0.0.1:{of_plugin}"),
        living(planned) as (vm, changes, _),
        serving_metrics(HTTPPort("127.0.0.1", of_vm), vm, with_card, sys),
        prometheus(tmp_path, {"": of_plugin, "lab/vm": of_vm}) as asked,
    ):
        heard(changes, Phase.RUNNING)
        wait_until(lambda: asked.firing().keys() == _FROM_THE_START and asked.has(_COUNTED), _SOON)
        bind(sys, "0000:01:00.1", "snd_hda_intel")
        aer(sys, "0000:01:00.0", correctable=1, fatal=1)
        broken = {"GPUPluginDeviceUnhealthy", "GPULauncherCardErrors"}
        wait_until(lambda: asked.firing().keys() == _FROM_THE_START | broken, _SOON)
        # A look that began before the binding has only the error for a reason; the next one has both.
        bound = "0000:01:00.1 (audio) is bound to snd_hda_intel"
        wait_until(lambda: bound in asked.firing()["GPUPluginDeviceUnhealthy"]["reason"], _SOON)
        errors = asked.firing()["GPULauncherCardErrors"]
        assert (errors["vm"], errors["device"], errors["error"]) == ("lab/vm", "0000:01:00.0", "fatal")
        (sys / "bus").rename(sys / "gone")
        wait_until(lambda: asked.firing().keys() == _FROM_THE_START | broken | {"GPUPluginSeesNoNode"}, _SOON)
        for query in QUERIES:
            if IN_USE.search(query):  # test_hours.py asks for these
                continue
            wait_until(partial(asked.has, query), _SOON)


_COUNTED = 'count_over_time(gpu_launcher_pci_errors_total{error="fatal"}[1m]) > 1'
