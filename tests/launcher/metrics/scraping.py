"""The metrics of a VM as Prometheus reads them, over a real port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from launcher.metrics.families import families, text_of
from launcher.metrics.gpus import GuestAnswer
from launcher.metrics.listener import serving_metrics
from launcher.metrics.samples import DomainNames, DomainSample, PodSample
from launcher.runtime.hostdevs import Hostdev
from launcher.runtime.nvidia_smi import GPUReading
from launcher.runtime.operations import VMState
from launcher.runtime.vm import VM, Phase
from pci.address import PCIAddress
from pci.host import Errors
from program.ports import HTTPPort
from tests.plugin.daemon import fetch, free_port

#: By the metric's name without its prefix, and its labels' values in their order: the value.
Scrape = dict[tuple[str, ...], float]


def scraped(port: int) -> Scrape:
    status, text = fetch(port, "/metrics")
    assert status == 200
    return read(text)


def read(text: str) -> Scrape:
    return {
        (sample.name.removeprefix("gpu_launcher_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def whole_page() -> str:
    """The text of a VM that has each metric."""
    numbers = {f"{group}.0.{name}": 1 for group, names in _EVERY.items() for name in names.split()}
    domain = DomainSample(VMState("running", "booted"), numbers | _NUMBERS, agent=False)
    card = PCIAddress(0, 1, 0, 0)
    pod = PodSample({"worker": 1}, 1, {card: Errors(0, 0, 0)})
    gpus = GuestAnswer(1, {card: GPUReading("580.126.09", 34, 1 << 30, 2 << 30, 41)})
    return text_of(
        families(Phase.RUNNING, domain, pod, DomainNames({}, (Hostdev("ua-gpu-gpu1", str(card), card),)), gpus)
    )


_EVERY = {
    "block": "rd.bytes rd.reqs rd.times wr.bytes wr.reqs wr.times",
    "net": "rx.bytes rx.pkts rx.errs rx.drop tx.bytes tx.pkts tx.errs tx.drop",
}
_NUMBERS = {
    "block.count": 1,
    "block.0.name": "vda",
    "net.count": 1,
    "net.0.name": "tap0",
    "vcpu.maximum": 1,
    "vcpu.0.time": 1,
}


@contextmanager
def scraping(vm: VM, xml: str, sys: Path) -> Iterator[Callable[[], Scrape]]:
    port = free_port()
    with serving_metrics(HTTPPort("127.0.0.1", port), vm, xml, sys):
        yield lambda: scraped(port)
