"""What happens to the node's tree when cards are bound and unbound, and when something fails on the way."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.changes.engine import Write, sysfs_writer
from plugin.changes.journal import Journal, JournalFile
from plugin.kinds.card import NotRebound, Plan
from plugin.kinds.drivers import DriverBinding
from program.child import Late
from program.errors import Refusal
from tests.compose import RTX_2060, card
from tests.faults import Faults, Killed, refuses
from tests.kernel import Sysfs, bind, load, process, vfio_group
from tests.pci.sysfs.test_record import contents
from tests.plugin.kinds.bound import BOUND, DAILY, GPU, Node, addresses, lines, rtx


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A desktop with one card, on the drivers of daily use."""
    return Node(tmp_path, rtx())


# What happens.


def test_bound_cards_are_on_vfio_and_their_former_drivers_remembered(node: Node) -> None:
    kernel = Sysfs(node.sys)
    node.carry_out(node.to_bind(GPU), kernel)
    assert tuple(kernel.log) == BOUND
    assert node.drivers() == ["vfio-pci"] * 4
    assert node.remembered() == {f"0000:01:00.{number}": DriverBinding(DAILY[number], None) for number in range(4)}


def test_unbind_gives_back_the_drivers_in_the_opposite_order(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    plan = node.to_unbind(GPU)
    assert lines(plan)[:4] == (
        "echo nouveau > /sys/bus/pci/devices/0000:01:00.0/driver_override",
        "echo 0000:01:00.0 > /sys/bus/pci/devices/0000:01:00.0/driver/unbind",
        "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe",
        "echo > /sys/bus/pci/devices/0000:01:00.0/driver_override",
    )
    assert addresses(plan) == [f"0000:01:00.{number}" for number in range(4)]
    # The kernel would choose another driver, if it were asked.
    node.carry_out(plan, Sysfs(node.sys, {GPU: "nvidia"}))
    assert node.drivers() == list(DAILY)
    assert node.remembered() == {}
    assert node.to_unbind(GPU) == Plan(())


def test_what_is_not_remembered_goes_to_whom_the_kernel_chooses(tmp_path: Path) -> None:
    node = Node(tmp_path, rtx("vfio-pci", "vfio-pci", None, "nvidia-gpu"))
    node.write(GPU, "driver_override", "vfio-pci")
    load(node.sys, "nouveau")
    plan = node.to_unbind(GPU)
    assert lines(plan) == (
        "echo > /sys/bus/pci/devices/0000:01:00.0/driver_override",
        "echo 0000:01:00.0 > /sys/bus/pci/devices/0000:01:00.0/driver/unbind",
        "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe",
        "echo 0000:01:00.1 > /sys/bus/pci/devices/0000:01:00.1/driver/unbind",
        "echo 0000:01:00.1 > /sys/bus/pci/drivers_probe",
    )
    node.carry_out(plan, Sysfs(node.sys, {GPU: "nouveau"}))
    assert node.drivers() == ["nouveau", None, None, "nvidia-gpu"]


def test_a_card_that_the_kernel_gives_to_vfio_again_is_said_to_be(tmp_path: Path) -> None:
    node = Node(tmp_path, rtx("vfio-pci", "vfio-pci", "vfio-pci", "vfio-pci"))
    with pytest.raises(Refusal, match=r"0000:01:00\.0: was given to vfio-pci again: its ID stands in vfio-pci\.ids="):
        node.carry_out(node.to_unbind(GPU), Sysfs(node.sys, {GPU: "vfio-pci"}))


def test_a_card_that_a_guest_has_is_not_unbound(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    vfio_group(node.sys, "1")
    process(node.proc, 4711, "qemu-system-x86", "/dev/vfio/vfio", "/dev/vfio/1")
    with pytest.raises(Refusal) as refused:
        node.to_unbind("0000:01:00.2")
    assert str(refused.value) == (
        "cannot unbind 0000:01:00.0: it is in use: /dev/vfio/1 is open in qemu-system-x86 (pid 4711); end that first"
    )


def test_a_former_driver_that_is_gone_is_asked_for(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    (node.sys / "bus/pci/drivers/nouveau").rmdir()
    with pytest.raises(
        Refusal, match=r"cannot unbind 0000:01:00\.0: it was on nouveau, which is not loaded; modprobe nouveau"
    ):
        node.to_unbind(GPU)


def test_what_is_remembered_of_another_card_in_the_slot_or_another_boot_does_not_count(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    node.write(GPU, "uevent", "DRIVER=vfio-pci\nPCI_CLASS=30000\nPCI_ID=10DE:2204\nPCI_SUBSYS_ID=0000:0000")
    first, second, *_ = node.to_unbind(GPU).moves
    assert (first.target, second.target) == (None, DriverBinding("snd_hda_intel", None))
    assert JournalFile(node.roots.state, "another").read() == Journal("another")


def test_a_driver_that_does_not_take_a_function_undoes_the_rest(node: Node) -> None:
    before = contents(node.sys)

    with pytest.raises(Refusal) as refused:
        node.carry_out(node.to_bind(GPU), Sysfs(node.sys, turned_down={("0000:01:00.1", "vfio-pci")}))
    assert str(refused.value) == (
        "0000:01:00.1: is on no driver, expected vfio-pci, and everything is as it was before; "
        "the kernel's log says why (dmesg)"
    )
    assert contents(node.sys) == before
    assert node.remembered() == {}


@pytest.mark.parametrize("number", range(1, len(BOUND) + 1))
def test_any_write_that_fails_is_named_and_everything_undone(node: Node, number: int) -> None:
    before = contents(node.sys)
    with pytest.raises(NotRebound) as refused:
        node.carry_out(node.to_bind(GPU), Sysfs(node.sys, instead=refuses(number)))
    (function,) = refused.value.reasons
    assert str(function) in BOUND[number - 1]
    assert str(refused.value) == (
        f"{BOUND[number - 1]}: Input/output error, and everything is as it was before; "
        "the kernel's log says why (dmesg)"
    )
    assert contents(node.sys) == before
    assert node.remembered() == {}


@pytest.mark.parametrize("number", range(1, len(BOUND) + 5))
def test_any_write_of_an_unbind_that_fails_leaves_the_card_bound(node: Node, number: int) -> None:
    node.carry_out(node.to_bind(GPU))
    before, remembered = contents(node.sys), node.remembered()
    with pytest.raises(Refusal, match="Input/output error, and everything is as it was before; the kernel"):
        node.carry_out(node.to_unbind(GPU), Sysfs(node.sys, instead=refuses(number)))
    assert contents(node.sys) == before
    assert node.remembered() == remembered


@pytest.mark.parametrize("number", range(2, len(BOUND) + 1))
def test_what_cannot_be_undone_is_named_and_can_be_given_back_later(node: Node, number: int) -> None:
    before = contents(node.sys)
    with pytest.raises(
        Refusal, match=r"Input/output error, and not undone: 0000:01:00\.[0-3] \(echo .*Input/output error"
    ):
        node.carry_out(node.to_bind(GPU), Sysfs(node.sys, instead=refuses(*range(number, 100))))
    node.carry_out(node.to_unbind(GPU))
    assert contents(node.sys) == before
    assert node.remembered() == {}


def test_a_driver_that_does_not_let_go_is_left_to_itself_and_the_others_undone(node: Node) -> None:
    with pytest.raises(Refusal) as refused:
        node.carry_out(
            node.to_bind(GPU), Sysfs(node.sys, instead=lambda number: Late("", "", "", 4711) if number == 11 else None)
        )
    assert str(refused.value) == (
        f"{BOUND[10]}: process 4711 hangs in the kernel until nobody has the device open any more, "
        "and not undone: 0000:01:00.0 (the kernel is still at it); end what has the device open"
    )
    assert node.drivers() == list(DAILY)
    assert node.remembered() == {GPU: DriverBinding("nouveau", None)}
    # It lets go at last: the function is on no driver, and its override is vfio-pci.
    bind(node.sys, GPU, None)
    node.carry_out(node.to_bind(GPU))
    assert node.drivers() == ["vfio-pci"] * 4
    assert node.remembered()[GPU] == DriverBinding("nouveau", None)


drivers = st.sampled_from([None, "nouveau", "snd_hda_intel", "pci-stub"])
overrides = st.sampled_from([None, None, "nouveau", "pci-stub", "vfio-pci"])
bindings = st.lists(st.tuples(drivers, overrides), min_size=4, max_size=4)


@contextmanager
def node_with(functions: list[tuple[str | None, str | None]]) -> Iterator[Node]:
    drivers = [driver for driver, _ in functions]
    with TemporaryDirectory() as directory:
        # The card alone: the fewer files, the more examples.
        node = Node(Path(directory), card("0000:01:00", RTX_2060, path="pci0000:00", group=1, drivers=drivers))
        load(node.sys, "nouveau", "snd_hda_intel", "pci-stub")
        for number, (_, override) in enumerate(functions):
            if override is not None:
                node.write(f"0000:01:00.{number}", "driver_override", override)
        yield node


@given(bindings)
def test_unbind_brings_back_the_very_tree_that_bind_found(functions: list[tuple[str | None, str | None]]) -> None:
    with node_with(functions) as node:
        before = contents(node.sys)
        plan = node.to_bind(GPU)
        kernel = Sysfs(node.sys)
        node.carry_out(plan, kernel)
        assert tuple(kernel.log) == lines(plan), "what a dry run prints is what is written"
        assert node.drivers() == ["vfio-pci"] * 4
        assert node.to_bind(GPU) == Plan(())
        node.carry_out(node.to_unbind(GPU))
        assert contents(node.sys) == before
        assert node.remembered() == {}


def test_an_unbind_that_was_killed_at_any_moment_is_finished_by_the_next(tmp_path: Path) -> None:
    faults = Faults()
    for at in range(100):
        node = Node(tmp_path / str(at), rtx())
        before = contents(node.sys)
        node.carry_out(node.to_bind(GPU))
        faults = Faults(at)
        with suppress(Killed):
            node.carry_out(node.to_unbind(GPU), faults=faults)
        node.carry_out(node.to_unbind(GPU))
        assert contents(node.sys) == before, f"killed at {at}"
        if at and faults.moments < at:
            break
    assert faults.moments > 40


def test_what_was_killed_at_any_moment_can_be_finished_or_taken_back(pytestconfig: pytest.Config) -> None:
    """From when the journal is written: before, nothing has happened. Four functions have 24 moments of writes, and up
    to 15 of the journal."""

    @settings(max_examples=10_000 if pytestconfig.getoption("--thorough") else 100)
    @given(bindings, st.integers(3, 40), st.booleans(), st.booleans())
    def killed(functions: list[tuple[str | None, str | None]], at: int, unbinds: bool, finished: bool) -> None:
        if unbinds:  # what is given back with vfio's override is for the next unbind what a killed bind has left
            functions = [(driver, None if override == "vfio-pci" else override) for driver, override in functions]
        with node_with(functions) as node:
            before = contents(node.sys)
            if unbinds:
                node.carry_out(node.to_bind(GPU))
            with suppress(Killed):
                node.carry_out(node.to_unbind(GPU) if unbinds else node.to_bind(GPU), faults=Faults(at))
            if finished:
                node.carry_out(node.to_bind(GPU))
                assert node.drivers() == ["vfio-pci"] * 4
            node.carry_out(node.to_unbind(GPU))
            assert contents(node.sys) == before
            # What was remembered and never done stays, until it is done.
            assert node.remembered() == {} or not finished

    killed()


# The edges of the world.

#: Other tests leave threads behind; the command has one.
forks = pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")


@forks
def test_the_writer_writes_lines_and_reports_what_the_kernel_says(tmp_path: Path) -> None:
    write = sysfs_writer(tmp_path)
    (tmp_path / "driver_override").write_text("")
    write(Write("driver_override", "vfio-pci"))
    assert (tmp_path / "driver_override").read_text() == "vfio-pci\n"
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        write(Write("driver/unbind", GPU))


@forks
def test_a_write_that_does_not_come_back_is_left_to_its_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "unbind")  # opening it waits for a reader
    with pytest.raises(Late) as still:
        sysfs_writer(tmp_path, seconds=0.1)(Write("unbind", GPU))
    assert (tmp_path / "unbind").read_text() == f"{GPU}\n", "it is still there, and done when the kernel lets it"
    os.waitpid(still.value.pid, 0)


def test_one_binder_at_a_time(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "state", "")
    with (
        journal.alone(),
        pytest.raises(Refusal, match="state/lock: another bind or unbind is at work"),
        journal.alone(),
    ):
        pass
    with journal.alone():
        pass


@forks
def test_a_write_that_hangs_keeps_the_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "unbind")
    journal = JournalFile(tmp_path, "")
    with journal.alone(), pytest.raises(Late) as still:
        sysfs_writer(tmp_path, seconds=0.1)(Write("unbind", GPU))
    with pytest.raises(Refusal, match="hangs in the kernel until a driver lets go"), journal.alone():
        pass
    (tmp_path / "unbind").read_text()
    os.waitpid(still.value.pid, 0)
    with journal.alone():
        pass


def test_a_state_that_cannot_be_kept_stops_everything(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cannot = r"file/state: cannot be written: .*; run as root, or name a directory with --state"
    with pytest.raises(Refusal, match=cannot), JournalFile(tmp_path / "file/state", "").alone():
        pass
    cannot = r"file/journal\.json: cannot be written: .*; run as root, or name a directory with --state"
    with pytest.raises(Refusal, match=cannot):
        JournalFile(tmp_path / "file", "").write(Journal(""))
    (node.roots.state / "journal.json").write_text('{"boot": "", "functions": []}')
    with pytest.raises(Refusal, match=r"journal\.json is not what gpu-plugin wrote \(.functions.: .*\); remove it"):
        node.to_bind(GPU)
