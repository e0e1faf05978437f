"""The cards of a running VM in words, for `ctl guest gpus`: where they are on the host and in the guest, what this
machine's sysfs reports of them, and what NVIDIA's driver in the guest reports."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from launcher.control.messages import GuestGPU, GuestGPUs
from pci.address import PCIAddress, address_or_none
from pci.host import Errors, Link
from pci.sysfs.attribute import Unreadable
from pci.sysfs.pcie import read_errors, read_link, read_power_state, read_reset_methods
from program.child import NoAnswer, forked

T = TypeVar("T")

_WITHIN = 3.0  # seconds for sysfs: a driver may never answer for a file


@dataclass(frozen=True, slots=True)
class OnHost:
    """What sysfs reports of a card; None for a value that it does not report. `faults`: what could not be read."""

    link: Link | None
    power_state: str | None
    errors: Errors | None
    reset_methods: tuple[str, ...] | None
    faults: tuple[str, ...] = ()


def on_host(sys: Path, answer: GuestGPUs, within: float = _WITHIN) -> tuple[Mapping[str, OnHost], str]:
    """Return what the tree `sys` reports of each card of GuestGPUs, by the card's address; and a line with the reason
    if nothing can be read. A mediated device has no address on the host."""
    addresses = [address for gpu in answer.gpus if (address := address_or_none(gpu.host)) is not None]
    try:
        return forked(f"the host's {sys}", partial(_read, sys, addresses), within=within).answer(), ""
    except (NoAnswer, OSError) as error:
        return {}, str(error)


def _read(sys: Path, addresses: Iterable[PCIAddress]) -> Mapping[str, OnHost]:
    return {str(address): _read_one(sys, address) for address in addresses}


def _read_one(sys: Path, address: PCIAddress) -> OnHost:
    faults: list[str] = []

    def value_of(read: Callable[[Path, PCIAddress], T]) -> T | None:
        try:
            return read(sys, address)
        except Unreadable as unreadable:
            faults.append(str(unreadable))
            return None

    its = (value_of(read_link), value_of(read_power_state), value_of(read_errors), value_of(read_reset_methods))
    return OnHost(*its, tuple(faults))


def as_json(answer: GuestGPUs, host: Mapping[str, OnHost], host_silence: str) -> dict[str, Any]:
    """Return the fields of a GuestGPUs, with the host's facts about each card; its keys stay."""
    gpus = [{**asdict(gpu), "on_host": _fields(host.get(gpu.host))} for gpu in answer.gpus]
    return {**asdict(answer), "gpus": gpus, "host_silence": host_silence}


def _fields(its: OnHost | None) -> dict[str, Any] | None:
    if its is None:
        return None
    errors = None if its.errors is None else its.errors._asdict()
    return {**asdict(its), "errors": errors}


def lines_of(answer: GuestGPUs, host: Mapping[str, OnHost], host_silence: str) -> Iterator[str]:
    """Yield a few lines for each card of GuestGPUs; then why the host or the guest reported nothing, or what is wrong
    with the guest's driver."""
    if not answer.gpus:
        yield "the VM has none of the host's cards"
    for gpu in answer.gpus:
        yield f"{gpu.name}: host {gpu.host} -> guest {gpu.guest}"
        if (its := host.get(gpu.host)) is not None:
            yield from (f"  {line}" for line in _on_host(its))
        if words := _state_words(gpu):
            yield f"  in the guest: {words}"
        elif not answer.silence:
            yield "  in the guest: nvidia-smi does not tell of it"
    for line in (host_silence, answer.silence, answer.mismatch):
        if line:
            yield line


def _on_host(its: OnHost) -> Iterator[str]:
    if its == OnHost(None, None, None, None):
        yield "not in the host's sysfs"
    if its.link is not None:
        now, most = _link(its.link.speed, its.link.lanes), _link(its.link.max_speed, its.link.max_lanes)
        yield f"link: {now}" if now == most else f"link: {now}, of {most}"
    if its.power_state is not None:
        yield f"power: {its.power_state}"
    if its.errors is not None:
        yield f"errors: {', '.join(f'{number} {kind}' for kind, number in its.errors._asdict().items())}"
    if its.reset_methods is not None:
        yield f"resets: {', '.join(its.reset_methods) or 'none is allowed'}"
    yield from its.faults


def _link(speed: float | None, lanes: int | None) -> str:
    return f"{'unknown speed' if speed is None else f'{speed:g} GT/s'} x{'?' if lanes is None else lanes}"


def _state_words(gpu: GuestGPU) -> str:
    """Return the known parts of `driver 580.126.09, 34% busy, 10.2 of 79.6 GiB used, 41 °C`."""
    words = []
    if gpu.driver_version is not None:
        words.append(f"driver {gpu.driver_version}")
    if gpu.utilization is not None:
        words.append(f"{gpu.utilization}% busy")
    if gpu.memory_used is not None and gpu.memory_total is not None:
        words.append(f"{gpu.memory_used / (1 << 30):.1f} of {gpu.memory_total / (1 << 30):.1f} GiB used")
    if gpu.temperature is not None:
        words.append(f"{gpu.temperature} °C")
    return ", ".join(words)
