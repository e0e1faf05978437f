"""The metrics, from libvirt's and the kernel's numbers, in Prometheus' text format, version 0.0.4:
https://prometheus.io/docs/instrumenting/exposition_formats/.

The format is written here, in twenty lines: prometheus_client imports http.server and ssl, 4.5 MB of a process beside
QEMU.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from launcher.metrics.gpus import GuestAnswer
from launcher.metrics.samples import DomainNames, DomainSample, PodSample
from launcher.runtime.nvidia_smi import GPUReading
from launcher.runtime.vm import Phase
from pci.address import PCIAddress

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A value, with its labels."""

    value: float
    labels: Mapping[str, str] = {}


class Family(NamedTuple):
    """A metric: its name, type and help text, and its samples."""

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


_NANOSECOND = 1e-9


class _Counter(NamedTuple):
    """A metric of each disk or network card: its name, libvirt's name, its help text, and the unit of libvirt's
    number."""

    name: str
    statistic: str
    what: str
    unit: float = 1


def _utilization(gpu: GPUReading) -> float | None:
    return None if gpu.utilization is None else gpu.utilization / 100


_DISK = (
    _Counter("disk_read_bytes", "rd.bytes", "Bytes that the guest has read."),
    _Counter("disk_reads", "rd.reqs", "Reads of the guest's that are done."),
    _Counter("disk_read_seconds", "rd.times", "How long these reads took, all together.", _NANOSECOND),
    _Counter("disk_written_bytes", "wr.bytes", "Bytes that the guest has written."),
    _Counter("disk_writes", "wr.reqs", "Writes of the guest's that are done."),
    _Counter("disk_write_seconds", "wr.times", "How long these writes took, all together.", _NANOSECOND),
)
_NETWORK = tuple(
    _Counter(f"network_{verb}_{unit}", f"{way}.{statistic}", f"{what} that the guest has {verb}{more}.")
    for verb, way in (("received", "rx"), ("sent", "tx"))
    for unit, statistic, what, more in (
        ("bytes", "bytes", "Bytes", ""),
        ("packets", "pkts", "Packets", ""),
        ("errors", "errs", "Packets", " with an error"),
        ("dropped", "drop", "Packets", ", and that were dropped"),
    )
)
#: Of each of the guest's GPUs: the metric's name, what it is, and its value, None if the driver does not tell it.
_GPU: tuple[tuple[str, str, Callable[[GPUReading], float | None]], ...] = (
    ("utilization_ratio", "The part of its driver's last sample in which the GPU has worked", _utilization),
    ("memory_bytes", "Memory that the GPU has", attrgetter("memory_total")),
    ("memory_used_bytes", "Memory of the GPU that is used", attrgetter("memory_used")),
    ("temperature_celsius", "How hot the GPU is", attrgetter("temperature")),
)


def families(
    phase: Phase, domain: DomainSample | None, pod: PodSample, names: DomainNames, gpus: GuestAnswer | None
) -> Iterator[Family]:
    """Yield the metrics. `domain` is None if libvirt has not been asked yet, or does not answer; `gpus` is the guest's
    answer about its GPUs, None if it has not been asked yet, or must not be."""
    yield _gauge("build_info", "1, with the version of gpu-launcher.", Sample(1, {"version": version("gpu-launcher")}))
    state, reason = ("", "") if domain is None else (domain.state.state, domain.state.reason)
    what = "1, with the VM's phase, and libvirt's state of it and the reason for that; both empty if it tells none."
    yield _gauge("vm_state", what, Sample(1, {"phase": phase.value, "state": state, "reason": reason}))
    if phase in (Phase.RUNNING, Phase.STOPPING):
        yield _gauge("sees_libvirt", "1 while libvirt answers; what it tells is missing otherwise.", domain is not None)
    if domain is not None:
        yield from _of_domain(domain, names)
    resident = [Sample(size, {"process": name}) for name, size in pod.resident.items()]
    if domain is not None and "balloon.rss" in domain.statistics:
        resident.append(Sample(domain.statistics["balloon.rss"] << 10, {"process": "qemu"}))
    yield _gauge("resident_memory_bytes", "Memory of a process; of qemu with what it has of the guest's.", *resident)
    if pod.container is not None:
        yield _gauge("container_memory_bytes", "Memory that counts for the container's limit.", pod.container)
    errors = [
        # Not severity: that is the label by which alerts are routed.
        Sample(number, {"device": str(function), "error": kind})
        for function, counted in pod.errors.items()
        for kind, number in counted._asdict().items()
    ]
    what = "Errors on PCI Express (AER) of each function that the guest has, since its kernel has found it."
    yield _counter("pci_errors", what, *errors)
    if gpus is not None:
        yield from _of_gpus(gpus, names)


def _of_domain(domain: DomainSample, names: DomainNames) -> Iterator[Family]:
    numbers = domain.statistics
    if domain.agent is not None:
        yield _gauge("guest_agent_connected", "1 while the guest's agent has its channel open.", domain.agent)
    vcpus = [
        Sample(numbers[time] * _NANOSECOND, {"vcpu": str(vcpu)})
        for vcpu in range(numbers.get("vcpu.maximum", 0))
        if (time := f"vcpu.{vcpu}.time") in numbers
    ]
    yield _counter("vcpu_seconds", "How long each virtual CPU has run.", *vcpus)
    for group, label, counters in (("block", "disk", _DISK), ("net", "interface", _NETWORK)):
        for each in counters:
            yield _counter(each.name, each.what, *_samples(numbers, group, label, each, names))


def _of_gpus(answer: GuestAnswer, names: DomainNames) -> Iterator[Family]:
    """Yield the metrics of the VM's own GPUs; ignore others in the guest's answer."""
    yield _gauge(
        "guest_tells_gpus", "1 if the guest has answered the last question for its GPUs.", answer.gpus is not None
    )
    if answer.gpus is None:
        return
    what = "When the guest has told of its GPUs, in seconds since 1970."
    yield _gauge("guest_gpus_timestamp_seconds", what, Sample(answer.time))
    gpus = [
        ({"gpu": device.name, "device": device.host}, answer.gpus[device.guest])
        for device in names.devices
        if device.alias and isinstance(device.guest, PCIAddress) and device.guest in answer.gpus
    ]
    versions = (Sample(1, {**labels, "driver_version": gpu.driver_version}) for labels, gpu in gpus)
    yield _gauge("guest_gpu_info", "1, with the version of the driver in the guest.", *versions)
    for name, what, value in _GPU:
        samples = (Sample(number, labels) for labels, gpu in gpus if (number := value(gpu)) is not None)
        yield _gauge(f"guest_gpu_{name}", f"{what}, as the guest tells.", *samples)


def _samples(
    numbers: Mapping[str, Any], group: str, label: str, counter: _Counter, names: DomainNames
) -> Iterator[Sample]:
    for index in range(numbers.get(f"{group}.count", 0)):
        target, number = (numbers.get(f"{group}.{index}.{key}") for key in ("name", counter.statistic))
        if target is not None and number is not None:
            value = number if counter.unit == 1 else number * counter.unit
            yield Sample(value, {label: names.targets.get(target, target)})


def _gauge(name: str, what: str, *values: Sample | float) -> Family:
    samples = tuple(each if isinstance(each, Sample) else Sample(int(each)) for each in values)
    return Family(f"gpu_launcher_{name}", "gauge", what, samples)


def _counter(name: str, what: str, *samples: Sample) -> Family:
    return Family(f"gpu_launcher_{name}_total", "counter", what, samples)
