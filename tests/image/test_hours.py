"""GPU hours by the rules of deploy/plugin/components/hours: a made-up month against what was allocated, in Debian's
promtool; and a real Prometheus that is away for a while.
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy.test_monitoring import IN_USE, QUERIES
from tests.image.test_prometheus import Prometheus
from tests.launcher.metrics.scraping import whole_page
from tests.plugin.daemon import free_port, wait_until
from tests.processes import ROOT

RULES = yaml.safe_load((ROOT / "deploy/plugin/components/hours/hours.yaml").read_text())["spec"]
MONTH = 30 * 24 * 60  # minutes
A100, L40S = "A100-SXM4-80GB", "L40S-24Q"


class Use(NamedTuple):
    """A device that somebody has from a minute to another; `who` are the labels that the plugin gives it."""

    node: str
    device: str
    who: str
    begin: int
    end: int


def by_pod(namespace: str, pod: str, *, honored: bool = True) -> str:
    """As a device plugin's card is told; a scrape without honor_labels puts its own pod in the place."""
    if honored:
        return f'namespace="{namespace}",pod="{pod}"'
    return f'exported_namespace="{namespace}",exported_pod="{pod}",namespace="kube-system",pod="gpu-plugin-x"'


def by_claim(namespace: str, claim: str, *, honored: bool = True) -> str:
    if honored:
        return f'namespace="{namespace}",claim="{claim}"'
    return f'exported_namespace="{namespace}",namespace="kube-system",pod="gpu-plugin-x",claim="{claim}"'


#: The plugin of gpu-1 is away from its first minute to the second, each time, and comes back as another pod.
AWAY = [(1_000, 1_004), (20_000, 20_045)]
USES = [
    Use("gpu-1", "0000:81:00.0", by_pod("ml", "train-0"), 17, 1_777),
    Use("gpu-1", "0000:41:00.0", by_pod("ml", "train-0"), 2_000, MONTH),
    Use("gpu-1", "0000:61:00.0", by_claim("vision", "desk-gpu-launcher-x7k2p"), 900, 30_000),
    Use("gpu-2", "0000:41:00.0", by_pod("ml", "virt-launcher-old-9f2xz", honored=False), 1, 4_321),
    Use("gpu-2", "0000:41:00.0", by_claim("ml", "virt-launcher-old-b7c2d-gpu-4k9xm", honored=False), 5_000, 5_061),
    Use("gpu-2", "0000:61:00.0", by_claim("vision", "shared"), 10, 70),
    Use("gpu-2", "0000:61:00.4", by_pod("vision", "vdi-1"), 100, 40_000),
]
#: By the labels of what is recorded: from which minute to which.
ALLOCATED = {
    f'{{model="{model}",namespace="{namespace}",vm="{vm}"}}': its
    for (namespace, vm, model), its in {
        ("ml", "train-0", A100): [(17, 1_777), (2_000, MONTH)],
        ("vision", "desk", A100): [(900, 30_000)],
        ("ml", "old", A100): [(1, 4_321), (5_000, 5_061)],
        ("vision", "shared", A100): [(10, 70)],
        ("vision", "vdi-1", L40S): [(100, 40_000)],
    }.items()
}
#: Minutes of a question: promtool takes 10,000 samples. Prometheus 2 counts both ends of a range, 3 the last alone.
_PART = 7_200


def _runs(begin: int, end: int, value: str, gaps: list[tuple[int, int]]) -> str:
    """The values of a series, one a minute: nothing before `begin`, in the gaps and from `end` on."""
    at, parts = begin, [f"_x{begin}"] if begin else []
    for away, back in [(a, b) for a, b in gaps if begin < b and a < end]:
        first, last = max(begin, away), min(end, back)
        parts += [f"{value}x{first - at - 1}"] if first > at else []
        parts += ["stale", *([f"_x{last - first - 1}"] if last - first > 1 else [])]
        at = last
    parts += [f"{value}x{end - at - 1}"] if end > at else []
    return " ".join([*parts, "stale"])


def _series() -> Iterator[dict[str, str]]:
    for number, node in enumerate(("gpu-1", "gpu-2")):
        gaps = AWAY if number == 0 else []
        yield {"series": f'gpu_plugin_sees_pods{{node="{node}"}}', "values": _runs(0, MONTH + 1, "1+0", gaps)}
        for device, model in (
            ("0000:41:00.0", A100),
            ("0000:61:00.0", A100),
            ("0000:61:00.4", L40S),
            ("0000:81:00.0", A100),
        ):
            labels = f'node="{node}",device="{device}",model="{model}",state="healthy"'
            yield {"series": f"gpu_plugin_device{{{labels}}}", "values": _runs(0, MONTH + 1, "1+0", gaps)}
    for use in USES:
        labels = f'node="{use.node}",device="{use.device}",{use.who}'
        gaps = AWAY if use.node == "gpu-1" else []
        values = _runs(use.begin, use.end, "1+0", gaps)
        yield {"series": f"gpu_plugin_device_in_use{{{labels}}}", "values": values}


def test_a_months_hours_are_what_was_allocated_to_the_minute(tmp_path: Path) -> None:
    """A use is seen at the first evaluation after it began, and not after it has ended."""
    (tmp_path / "rules.yaml").write_text(json.dumps(RULES))
    told = [
        {
            "expr": f"sum by (namespace, vm, model) (sum_over_time(gpu:seconds{vm}[{_PART - 1}m59s])) / 60",
            "eval_time": f"{end}m",
            "exp_samples": [{"labels": vm, "value": minutes}] if minutes else [],
        }
        for end in range(_PART, MONTH + 1, _PART)
        for vm, its in ALLOCATED.items()
        if (minutes := sum(max(0, min(last, end + 1) - max(first, end + 1 - _PART)) for first, last in its)) is not None
    ]
    case = {"interval": "1m", "input_series": [*_series()], "promql_expr_test": told}
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "tests.yaml").write_text(json.dumps(document))
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class _Exporter(BaseHTTPRequestHandler):
    """A plugin and a VM, as their pages are."""

    def do_GET(self) -> None:
        text = (
            'gpu_plugin_sees_pods{node="gpu-1"} 1\n'
            'gpu_plugin_device{node="gpu-1",device="0000:41:00.0",model="A100",state="healthy",reason=""} 1\n'
            'gpu_plugin_device_in_use{node="gpu-1",device="0000:41:00.0",namespace="ml",pod="train",claim=""} 1\n'
        ) + whole_page()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def _prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    """Prometheus with the rules, each second; what it knew it knows again."""
    rules = {"groups": [{**group, "interval": "1s"} for group in RULES["groups"]]}
    (directory / "rules.yaml").write_text(json.dumps(rules))
    scraped = {"job_name": "ours", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = {"global": {"scrape_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": [scraped]}
    (directory / "prometheus.yaml").write_text(json.dumps(config))
    port = free_port()
    command = ["prometheus", f"--config.file={directory / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (directory / "log").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()


@pytest.fixture
def exporter() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_hours_go_on_while_prometheus_is_away_and_the_dashboard_shows_them(tmp_path: Path, exporter: int) -> None:
    with _prometheus(tmp_path, exporter) as asked:
        wait_until(lambda: _counted(asked) > 0, 60)
        first, since = _first(asked), time.time()
        assert first <= since
    time.sleep(8)
    with _prometheus(tmp_path, exporter) as asked:
        wait_until(lambda: asked.has("gpu:seconds > 5"), 60)
        wait_until(lambda: abs(_counted(asked) - (_last(asked) - first)) <= 2, 30)
        for query in QUERIES:
            if IN_USE.search(query):
                wait_until(lambda query=query: asked.has(query), 30)  # type: ignore[misc]


def _value(asked: Prometheus, query: str) -> float:
    answer: Any = asked.asked("query", query=query)
    results = answer["result"] if answer else []
    return float(results[0]["value"][1]) if results else 0.0


def _counted(asked: Prometheus) -> float:
    return _value(asked, 'sum(sum_over_time(gpu:seconds{namespace="ml", vm="train", model="A100"}[1h]))')


def _first(asked: Prometheus) -> float:
    """When the node was counted first."""
    return _value(asked, "min_over_time(gpu:counted_until[1h])")


def _last(asked: Prometheus) -> float:
    return _value(asked, "gpu:counted_until")
