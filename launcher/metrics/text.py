"""Prometheus' text format, version 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/.

Written here, in twenty lines: prometheus_client imports http.server and ssl, 4.5 MB of a process beside QEMU.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A value, with its labels."""

    value: float
    labels: Mapping[str, str] = {}


class Family(NamedTuple):
    """A metric: what it is, and its samples."""

    name: str
    kind: Literal["counter", "gauge"]
    what: str
    samples: tuple[Sample, ...]


def text_of(families: Iterable[Family]) -> str:
    """Return the text of the metrics that have samples."""
    return "".join(
        f"# HELP {family.name} {family.what}\n# TYPE {family.name} {family.kind}\n"
        + "".join(f"{family.name}{_labels(each.labels)} {each.value}\n" for each in family.samples)
        for family in families
        if family.samples
    )


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
