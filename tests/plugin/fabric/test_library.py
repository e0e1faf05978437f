"""libnvfm's layouts, calls and codes, against the stand-in; and calls that never return."""

import asyncio
import ctypes
import time
from pathlib import Path

import pytest

import plugin.fabric.fabric_manager as asking
from plugin.cards.config import Fabric
from plugin.fabric import abi
from plugin.fabric.abi import Code
from plugin.fabric.fabric_manager import ManagerError, NoLibrary, Unanswered
from plugin.fabric.partitions import Partition
from tests.fabric.standin import A100_16, B200, H100, SOCKET, Call, Manager, Sets, sizes
from tests.waiting import allowed

STRUCTURES = (
    abi.ConnectParamsV1,
    abi.ConnectParams,
    abi.GpuInfo,
    abi.PartitionInfo,
    abi.PartitionList,
    abi.ActivatedList,
    abi.FailedDevice,
    abi.FailedDevices,
    abi.Unsupported,
    abi.UnsupportedList,
)
#: As a C compiler has them from NVIDIA's header.
SIZES = (268, 272, 128, 2060, 131852, 264, 372, 10428, 72, 4616)


def of(manager: Manager, address: str = SOCKET) -> Fabric:
    """What a config says of it."""
    return Fabric(library=str(manager.library), manager=address)


def test_sizes_are_those_of_a_compiler(libnvfm: Path) -> None:
    assert tuple(map(ctypes.sizeof, STRUCTURES)) == SIZES
    assert tuple(sizes(libnvfm)) == SIZES


def test_offsets_are_those_of_the_header() -> None:
    assert abi.ConnectParams.timeoutMs.offset == 260
    assert abi.ConnectParams.addressType.offset == 268
    assert abi.GpuInfo.pciBusId.offset == 84
    assert abi.GpuInfo.nvlinkLineRateMBps.offset == 124
    assert abi.PartitionInfo.gpuInfo.offset == 12
    assert abi.PartitionList.partitionInfo.offset == 12
    assert abi.ActivatedList.partitionIds.offset == 8
    assert abi.FailedDevice.portNum.offset == 116
    assert abi.FailedDevices.switchInfo.offset == 5964
    assert abi.UnsupportedList.partitionInfo.offset == 8


def test_versions_are_those_of_the_header() -> None:
    versions = {
        (abi.ConnectParamsV1, 1): 0x0100010C,
        (abi.ConnectParams, 2): 0x02000110,
        (abi.PartitionList, 1): 0x0102030C,
        (abi.ActivatedList, 1): 0x01000108,
        (abi.FailedDevices, 1): 0x010028BC,
        (abi.UnsupportedList, 1): 0x01001208,
    }
    for (structure, number), version in versions.items():
        words = bytes(abi.versioned(structure, number))
        assert int.from_bytes(words[:4], "little") == version
        assert not any(words[4:])


@pytest.mark.parametrize("board", [H100, B200, A100_16], ids=["H100", "B200", "A100"])
def test_a_table_as_the_manager_has_it(board: tuple[int, Sets], libnvfm: Path, tmp_path: Path) -> None:
    manager = Manager(libnvfm, tmp_path, board)
    table = asyncio.run(asking.Manager(of(manager)).table())
    first, sets = board
    assert [(each.id, each.modules) for each in table.partitions] == list(enumerate(sets, start=first))
    assert table.active == ()


@pytest.mark.parametrize(("address", "kind"), [("127.0.0.1:6666", 1), (SOCKET, 2), ("2:6666", 3)])
def test_each_kind_of_address(address: str, kind: int, libnvfm: Path, tmp_path: Path) -> None:
    manager = Manager(libnvfm, tmp_path, address=address, kind=kind)
    written = f"vsock:{address}" if kind == 3 else address
    assert len(asyncio.run(asking.Manager(of(manager, written)).table()).partitions) == 15
    with pytest.raises(ManagerError, match="CONNECTION_NOT_VALID"):
        asyncio.run(asking.Manager(of(manager, "/another")).table())


def test_a_library_that_knows_only_the_older_parameters(manager: Manager) -> None:
    manager.knows_parameters(1)
    assert len(asyncio.run(asking.Manager(of(manager)).table()).partitions) == 15


def test_activated_and_deactivated(manager: Manager) -> None:
    asked = asking.Manager(of(manager))

    async def life() -> None:
        pair = next(each for each in (await asked.table()).partitions if each.modules == (1, 3))
        await asked.activate(pair)
        assert (await asked.table()).active == (Partition(pair.id, (1, 3), is_active=True),)
        with pytest.raises(ManagerError, match=r"partition 3: the Fabric Manager cannot activate it: IN_USE \(-7\)"):
            await asked.activate(pair)
        await asked.deactivate(pair)
        with pytest.raises(ManagerError, match="UNINITIALIZED"):
            await asked.deactivate(pair)

    asyncio.run(life())
    assert manager.log == ["activate 3", "deactivate 3"]


def test_a_list_given_back_to_a_manager_that_resumes(manager: Manager) -> None:
    asked = asking.Manager(of(manager))

    async def life() -> None:
        manager.restart(wants_list_within=60)
        with pytest.raises(ManagerError, match="NOT_CONFIGURED"):
            await asked.table()
        await asked.give_back([1, 6])
        assert [each.id for each in (await asked.table()).active] == [1, 6]

    asyncio.run(life())


@pytest.mark.parametrize("code", [*(code for code in Code if code), -99])
def test_every_code_is_named(code: int, manager: Manager) -> None:
    manager.answers(Call.GET, code)
    with pytest.raises(ManagerError) as error:
        asyncio.run(asking.Manager(of(manager)).table())
    assert error.value.code == code
    assert f"({code})" in str(error.value)
    assert error.value.problem.fix


@pytest.mark.parametrize("call", [Call.INIT, Call.CONNECT, Call.GET, Call.FAILED])
def test_any_call_may_fail(call: Call, manager: Manager) -> None:
    manager.answers(call, Code.GENERIC_ERROR)
    with pytest.raises(ManagerError, match="GENERIC_ERROR"):
        asyncio.run(asking.Manager(of(manager)).table())


def test_a_connection_that_does_not_end_well_loses_no_answer(manager: Manager) -> None:
    manager.answers(Call.DISCONNECT, Code.GENERIC_ERROR)
    manager.answers(Call.SHUTDOWN, Code.GENERIC_ERROR)
    assert asyncio.run(asking.Manager(of(manager)).table()).partitions


def test_broken_links_are_told_where_the_board_tells_them(manager: Manager) -> None:
    manager.breaks_links(3)
    assert asyncio.run(asking.Manager(of(manager)).table()).failed == ("GPU-3 at 00000000:03:00.0",)
    manager.answers(Call.FAILED, Code.NOT_SUPPORTED)
    assert asyncio.run(asking.Manager(of(manager)).table()).failed == ()


def test_no_library() -> None:
    with pytest.raises(NoLibrary, match=r"libnvfm\.so\.none: cannot be loaded"):
        asyncio.run(asking.Manager(Fabric(library="libnvfm.so.none")).table())


def test_a_library_that_is_another_one() -> None:
    with pytest.raises(NoLibrary, match="fmLibInit"):
        asyncio.run(asking.Manager(Fabric(library="libc.so.6")).table())


@pytest.mark.parametrize("call", [Call.INIT, Call.CONNECT, Call.GET, Call.ACTIVATE, Call.DISCONNECT])
def test_a_call_that_never_returns_is_given_up(call: Call, manager: Manager) -> None:
    asked = asking.Manager(of(manager), table_within=1, change_within=1)

    async def life() -> None:
        manager.hangs(call)
        if call is Call.ACTIVATE:
            await asked.activate(Partition(3, (1, 3)))
        else:
            await asked.table()

    began = time.monotonic()
    with pytest.raises(Unanswered, match="does not answer within 1 s"):
        asyncio.run(life())
    assert time.monotonic() - began < allowed(3)


def test_an_activation_that_is_not_answered_may_be_carried_out(manager: Manager) -> None:
    manager.hangs(Call.ACTIVATE, having_acted=True)
    with pytest.raises(Unanswered):
        # The time has to suffice for the child to start, and to ask.
        asyncio.run(asking.Manager(of(manager), change_within=5).activate(Partition(3, (1, 3))))
    assert manager.active == {(1, 3)}
