import pytest
from lxml.builder import E

from launcher.vm.versions import (
    NEWER,
    Newer,
    kernel_version,
    newer_elements,
    numbered,
    parse_version,
    too_new,
    version_text,
)
from program.errors import UserError

#: A domain with every element of the table.
EVERYTHING = E.domain(
    E.os(E.acpi(E.table("/t", type="slic"), E.table("/t", type="msdm"))),
    E.features(E.hyperv(E.tlbflush(E.direct(state="on"), E.extended(state="on")))),
    E.launchSecurity(type="sev-snp"),
    E.launchSecurity(type="tdx"),
    E.iommufd(enabled="yes"),
    E.devices(
        E.panic(model="pvpanic"),
        E.interface(E.model(type="igb")),
        E.hostdev(type="pci", display="on", ramfb="on"),
        E.disk(E.driver(E.iothreads()), E.blockio(discard_granularity="0")),
        E.controller(E.driver(E.iothreads())),
    ),
)
#: What is like it, and known to libvirt 9.0.
OLDER = E.domain(
    E.os(E.acpi(E.table("/t", type="slic"))),
    E.features(E.hyperv(E.tlbflush(state="on"))),
    E.launchSecurity(type="sev"),
    E.devices(
        E.panic(model="isa"),
        E.interface(E.model(type="virtio")),
        E.hostdev(type="mdev", display="on", ramfb="on"),
        E.disk(E.driver(iothread="1"), E.blockio(logical_block_size="512")),
        E.controller(E.driver(iothread="1")),
    ),
)


def test_every_element_of_the_table_is_found_where_it_is() -> None:
    assert newer_elements(EVERYTHING) == NEWER


def test_what_libvirt_9_knows_is_not_found() -> None:
    assert newer_elements(OLDER) == ()


def test_the_table_is_about_what_is_newer_than_9_0() -> None:
    assert [newer for newer in NEWER if newer.since <= (9, 0, 0)] == []
    assert len({newer.path for newer in NEWER}) == len(NEWER)


def test_what_is_too_new_is_said_with_the_field_that_asks_for_it_and_the_version() -> None:
    elements = newer_elements(E.domain(E.launchSecurity(type="tdx"), E.devices(E.panic(model="pvpanic"))))
    assert too_new(elements, (11, 6, 0)) == ()
    (problem,) = too_new(elements, (11, 3, 0))
    assert str(problem) == (
        "launchSecurity.tdx: <launchSecurity type='tdx'> needs libvirt 11.6.0, and this is 11.3.0; "
        "take a newer libvirt, or leave out what asks for it"
    )
    both = too_new(elements, (9, 0, 0))
    assert [problem.subject for problem in both] == ["launchSecurity.tdx", "devices.panicDevices"]


@pytest.mark.parametrize(("text", "version"), [("9.0", (9, 0, 0)), ("11.10.3", (11, 10, 3)), ("12.5.0", (12, 5, 0))])
def test_a_version_is_read_as_libvirt_prints_it(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "9", "9.0.0.0", "v9.0", "9.-1", "9.x", "9..0", "99999.0", "\u0669.\u0660"])
def test_anything_else_is_no_version(text: str) -> None:
    with pytest.raises(UserError, match="is no version; expected one like"):
        parse_version(text)


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.12.43+deb13-amd64", (6, 12, 43)), ("7.1-rc2", (7, 1, 0)), ("", None), ("Linux", None)],
)
def test_a_kernels_version_is_how_its_release_begins(release: str, version: tuple[int, int, int] | None) -> None:
    assert kernel_version(release) == version


def test_libvirts_number_is_its_version() -> None:
    assert version_text(numbered(11_003_000)) == "11.3.0"
    assert numbered(9_000_002) == (9, 0, 2)


def test_an_element_is_said_with_the_field_that_asks_for_it() -> None:
    newer = Newer("devices/x", (10, 1, 0), "<x>", "devices.y")
    assert str(newer.problem(None)).startswith("devices.y: <x> needs libvirt 10.1.0; take a newer libvirt")
