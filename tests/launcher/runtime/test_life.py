"""A VM from its plan to its end, in the test's own process: what its other threads ask of it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import libvirt
import pytest

from launcher.runtime.embedded import root_of
from launcher.runtime.plan import RunPlan
from launcher.runtime.preparation import StartPreparation
from launcher.runtime.run import run, tidy
from launcher.runtime.vm import VM, Change, Phase, StopRequested, VMIdentity
from launcher.vm.domain import domain_name, socket_directory
from launcher.vm.facts import Facts
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.paths import KERNEL_BOOT
from launcher.vm.volumes.media import Brought
from program.ending import Ending
from program.errors import Refusal
from tests.launcher import kernels
from tests.launcher.runtime.told import Changes, told
from tests.launcher.vms import domain_of, read_manifest, write_vmi
from tests.waiting import allowed, until


def plan(directory: Path, uri: str, *, kernel: bytes | None = None, grace: float = 60, paused: bool = False) -> RunPlan:
    """A VM with a serial console, on libvirt's test driver or, with a kernel, under QEMU."""
    path = write_vmi(directory / "vm.yaml", domain="" if kernel is None else _BOOTS)
    path.write_text(path.read_text().replace("{name: vm}", f"{{name: vm, uid: {uuid4()}}}"))
    vmi = read_manifest(path)
    xml = domain_of(vmi, Layout(), Facts(kvm=kernel is None))
    if kernel is not None:
        file = directory / "kernel"
        file.write_bytes(kernels.multiboot(kernel))
        xml = xml.replace(f"{KERNEL_BOOT}/kernel", str(file))
    return RunPlan(
        identity=VMIdentity("default", "vm", str(vmi.metadata.uid)),
        domain=domain_name(vmi.metadata),
        xml=xml,
        numbers={},
        sockets=socket_directory(vmi, Facts()),
        needs=(),
        uri=uri,
        locked=0,
        acpi=True,
        grace=grace,
        paused=paused,
    )


_BOOTS = "    cpu: {model: qemu64}\n    firmware: {kernelBoot: {container: {image: x, kernelPath: /kernel}}}\n"


@contextmanager
def living(plan: RunPlan) -> Iterator[tuple[VM, Changes, list[Ending]]]:
    """The VM as another thread has it live; how it ended, once that thread has ended."""
    vm, endings = VM(plan.identity), list[Ending]()
    thread = threading.Thread(target=lambda: endings.append(run(plan, vm, nullcontext())))
    with told(vm) as changes:
        thread.start()
        try:
            yield vm, changes, endings
        finally:
            vm.request(StopRequested.KILL)
            thread.join(allowed(60))
    assert not thread.is_alive()


def heard(changes: Changes, phase: Phase, event: str = "") -> Change:
    return next(change for change in changes if change.phase is phase and event in ("", change.event))


def test_a_vm_goes_through_its_phases_and_is_asked_at_any_time(tmp_path: Path) -> None:
    with living(plan(tmp_path, "test:///default")) as (vm, changes, endings):
        heard(changes, Phase.RUNNING)
        assert vm.domain().name() == "default_vm"
        vm.request(StopRequested.SHUTDOWN)
        assert [change.phase for change in changes if not change.event] == [Phase.STOPPING, Phase.ENDED]
        with pytest.raises(Refusal, match="is ended"):
            vm.domain()
    assert endings == [Ending.ON_REQUEST]


def test_a_stop_that_comes_before_the_start_prevents_it(tmp_path: Path) -> None:
    planned = plan(tmp_path, "test:///default")
    vm = VM(planned.identity)
    with told(vm) as changes:
        vm.request(StopRequested.SHUTDOWN)
        assert run(planned, vm, nullcontext()) is Ending.NOT_STARTED
        assert "started" not in [change.event for change in changes]


@pytest.mark.parametrize("stop", StopRequested)
def test_a_stop_does_not_wait_for_a_libvirt_that_does_not_answer(tmp_path: Path, stop: StopRequested) -> None:
    planned = plan(tmp_path, "test:///default")
    vm, hangs, begun = VM(planned.identity), threading.Event(), time.monotonic()
    vm.request(stop)
    assert run(planned, vm, nullcontext(), StartPreparation(wait_for_libvirt=hangs.wait)) is Ending.NOT_STARTED
    assert time.monotonic() - begun < allowed(20)
    hangs.set()


def test_what_becomes_a_link_before_libvirt_has_the_domain_is_refused(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    disk = volume / "disk.img"
    disk.touch()

    def swap() -> None:
        disk.unlink()
        disk.symlink_to("/etc/passwd")

    whose = "the volume 'data'"
    planned = replace(plan(tmp_path, "test:///default"), needs=(Brought(disk, volume, whose),))
    vm = VM(planned.identity)
    with told(vm) as changes:
        with pytest.raises(Refusal, match=r"the volume 'data': .* leads out of its volume, to /etc/passwd"):
            run(planned, vm, nullcontext(), StartPreparation(wait_for_libvirt=swap))
        assert [change.phase for change in changes] == [Phase.PREPARING, Phase.ENDED]


def test_a_guest_is_ready_exactly_while_it_runs_and_a_paused_one_is_resumed_to_shut_down(
    embedded_uri: str, tmp_path: Path
) -> None:
    root = root_of(embedded_uri)
    assert root is not None
    ready = root / "ready"
    with living(plan(tmp_path, embedded_uri, kernel=kernels.IGNORES, grace=1)) as (vm, changes, endings):
        heard(changes, Phase.STARTING)
        assert not ready.exists()
        heard(changes, Phase.RUNNING)
        until(ready.exists)
        vm.domain().suspend()
        until(lambda: not ready.exists())
        vm.domain().resume()
        until(ready.exists)
        vm.domain().suspend()
        vm.request(StopRequested.SIGNAL)
        assert heard(changes, Phase.STOPPING, "resumed").reason == "unpaused"
        heard(changes, Phase.ENDED)
    assert endings == [Ending.ON_REQUEST]
    assert not ready.exists()


def test_a_guest_that_starts_paused_runs_once_somebody_resumes_it(embedded_uri: str, tmp_path: Path) -> None:
    root = root_of(embedded_uri)
    assert root is not None
    planned = plan(tmp_path, embedded_uri, kernel=kernels.POWERS_OFF, paused=True)
    with living(planned) as (vm, changes, endings):
        heard(changes, Phase.RUNNING)
        assert vm.domain().state()[0] == libvirt.VIR_DOMAIN_PAUSED
        assert not (root / "ready").exists()
        vm.domain().resume()
        heard(changes, Phase.ENDED)
    assert endings == [Ending.POWERED_OFF]


def test_a_kill_ends_a_guest_that_is_being_asked(embedded_uri: str, tmp_path: Path) -> None:
    with living(plan(tmp_path, embedded_uri, kernel=kernels.IGNORES, grace=600)) as (vm, changes, endings):
        heard(changes, Phase.RUNNING)
        vm.request(StopRequested.SHUTDOWN)
        heard(changes, Phase.STOPPING)
        vm.request(StopRequested.KILL)
        heard(changes, Phase.ENDED)
    assert endings == [Ending.ON_REQUEST]


def test_tidying_takes_away_what_a_killed_launcher_has_left(embedded_uri: str, tmp_path: Path) -> None:
    planned = plan(tmp_path, embedded_uri, kernel=kernels.IGNORES)
    root = root_of(embedded_uri)
    assert root is not None
    planned.sockets.mkdir(parents=True)
    (root / "ready").touch()
    tidy(planned)
    assert not planned.sockets.exists()
    assert not (root / "ready").exists()
