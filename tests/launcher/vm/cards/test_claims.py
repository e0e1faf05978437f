from uuid import UUID

import pytest

from launcher.vm.cards.claims import Allocated, DeviceID, Entry, EntryKind, LeftOver, Request
from launcher.vm.cards.guest import whole_cards
from pci.address import PCIAddress
from pci.resource import USBAddress
from pci.sysfs.functions import read_host
from program.errors import UserError
from tests.conftest import Machine
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, RTX_3090, RTX_3090_VARIABLE, claim, entries

TWO_GPUS = entries(gpus=[("gpu1", RTX_3090), ("gpu2", RTX_3090)])


def claimed(wanted: tuple[Entry, ...], value: str, variable: str = RTX_3090_VARIABLE) -> dict[str, str]:
    claims, _ = claim(wanted, {variable: value}, None)
    return {claim.entry.name: str(claim.device) for claim in claims}


def problem_of(wanted: tuple[Entry, ...], environ: dict[str, str]) -> str:
    with pytest.raises(UserError) as error:
        claim(wanted, environ, None)
    return str(error.value)


def test_every_entry_gets_an_address_in_order() -> None:
    assert claimed(TWO_GPUS, "0000:86:00.0,0000:af:00.0") == {"gpu1": "0000:86:00.0", "gpu2": "0000:af:00.0"}


def test_the_older_dialect_gives_two_cards_and_not_a_gpu_and_its_sound_card() -> None:
    value = "0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1"
    assert claimed(TWO_GPUS, value) == {"gpu1": "0000:e1:00.0", "gpu2": "0000:01:00.0"}


@pytest.mark.parametrize("value", ["01:00.0 01:00.1 e1:00.0 e1:00.1", "01:00.1 01:00.0 e1:00.1 e1:00.0"])
def test_a_function_that_travels_alone_is_no_device_of_the_older_dialect(value: str, copied_machine: Machine) -> None:
    """A bridge stands for whatever `travels_alone` names."""
    sys = copied_machine("two-rtx-3090")
    for slot in ("01:00", "e1:00"):
        uevent = sys / f"bus/pci/devices/0000:{slot}.1/uevent"
        uevent.write_text(uevent.read_text().replace("PCI_CLASS=40300", "PCI_CLASS=60400"))
    host = read_host(sys)
    addresses = [f"0000:{address}" for address in value.split()]
    claims, left_over = claim(TWO_GPUS, {RTX_3090_VARIABLE: ",".join(addresses)}, host)
    assert [str(claim.device) for claim in claims] == ["0000:01:00.0", "0000:e1:00.0"]
    assert left_over == ()
    newer, left_over = claim(TWO_GPUS, {RTX_3090_VARIABLE: ",".join(sorted(addresses)[::2])}, host)
    assert (newer, left_over) == (claims, ())
    assert [card.functions for card in whole_cards(newer, (), host)] == [(claim.device,) for claim in claims]


def test_gpus_and_host_devices_draw_from_one_pool_gpus_first() -> None:
    wanted = entries(gpus=[("gpu1", RTX_3090)], host_devices=[("other", RTX_3090)])
    assert claimed(wanted, "0000:86:00.0,0000:af:00.0") == {"gpu1": "0000:86:00.0", "other": "0000:af:00.0"}


def test_the_aliases_are_kubevirts() -> None:
    wanted = entries(gpus=[("gpu1", RTX_3090)], host_devices=[("other", RTX_3090)])
    claims, _ = claim(wanted, {RTX_3090_VARIABLE: "0000:86:00.0,0000:af:00.0"}, None)
    assert [claim.alias for claim in claims] == ["ua-gpu-gpu1", "ua-hostdevice-other"]


def test_an_address_under_two_resources_is_given_once() -> None:
    wanted = entries(gpus=[("gpu1", RTX_3090), ("gpu2", RTX_2060)])
    environ = {RTX_3090_VARIABLE: "0000:86:00.0", RTX_2060_VARIABLE: "0000:86:00.0,0000:af:00.0"}
    # The second variable has one entry and two addresses, of which one is gone.
    claims, left_over = claim(wanted, environ, None)
    assert [str(claim.device) for claim in claims] == ["0000:86:00.0", "0000:af:00.0"]
    assert left_over == ()


def test_two_resources_that_share_a_variable_share_its_devices() -> None:
    wanted = entries(gpus=[("gpu1", "a.b/c"), ("gpu2", "a/b.c")])
    assert claimed(wanted, "0000:86:00.0,0000:86:00.1", "PCI_RESOURCE_A_B_C") == {
        "gpu1": "0000:86:00.0",
        "gpu2": "0000:86:00.1",
    }


def test_where_sysfs_is_known_virtual_functions_of_one_slot_are_devices_of_their_own(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    wanted = entries(host_devices=[("vf", "example.com/vf")])
    environ = {"PCI_RESOURCE_EXAMPLE_COM_VF": "0000:02:00.1,0000:02:00.2"}
    _, (left_over,) = claim(wanted, environ, host)
    assert list(map(str, left_over.devices)) == ["0000:02:00.2"]
    assert claim(wanted, environ, None)[1] == ()


def test_mediated_devices_are_claimed_by_their_own_variable() -> None:
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    claims, _ = claim(
        entries(gpus=[("v", "nvidia.com/GRID_T4-1Q")]), {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": uuid}, None
    )
    assert claims[0].device == UUID(uuid)


def test_unset_empty_exhausted_and_left_over_are_four_messages() -> None:
    one = entries(gpus=[("gpu1", RTX_3090)])
    unset = problem_of(one, {})
    empty = problem_of(one, {RTX_3090_VARIABLE: ","})
    exhausted = problem_of(TWO_GPUS, {RTX_3090_VARIABLE: "0000:86:00.0"})
    for problem, entry in ((unset, "gpu 'gpu1'"), (empty, "gpu 'gpu1'"), (exhausted, "gpu 'gpu2'")):
        assert problem.startswith(f"{entry}: asks for {RTX_3090}, but {RTX_3090_VARIABLE} ")
        assert "\n" not in problem
    assert "is not set; expected the pod to request" in unset
    assert "is empty; expected at least one address" in empty
    assert "is exhausted: 2 entries draw on its 1 (0000:86:00.0); expected the pod to request 2" in exhausted
    _, (left_over,) = claim(one, {RTX_3090_VARIABLE: "0000:86:00.0,0000:af:00.0"}, None)
    assert str(left_over.problem) == (
        f"{RTX_3090_VARIABLE}: has 0000:af:00.0 left over: no entry of gpus or hostDevices asks for what the pod "
        "holds; list an entry for each, or let the pod request fewer of its resource"
    )


@pytest.mark.parametrize(
    ("kind", "resource", "variables"),
    [
        ("gpus", "nvidia.com/pgpu", "PCI_RESOURCE_NVIDIA_COM_PGPU=0000:41:00.0"),
        (
            "gpus",
            "nvidia.com/T4-1Q",
            "MDEV_{0}=UUID or --env {0}=0000:41:00.0 of a virtual function".format("PCI_RESOURCE_NVIDIA_COM_T4-1Q"),
        ),
        ("host_devices", "kubevirt.io/usb-stick", "USB_RESOURCE_KUBEVIRT_IO_USB-STICK=1:3"),
        (
            "host_devices",
            "kubevirt.io/storage",
            "PCI_{0}=0000:41:00.0 or --env USB_{0}=1:3 of a USB device".format("RESOURCE_KUBEVIRT_IO_STORAGE"),
        ),
    ],
)
def test_the_variable_of_the_hint_is_that_of_the_devices_kind(kind: str, resource: str, variables: str) -> None:
    """It was PCI_RESOURCE_...=0000:41:00.0 for each, which gives a vGPU's entry a whole card."""
    said = problem_of(entries(**{kind: [("name", resource)]}), {})
    assert f", but {variables.partition('=')[0]} is not set; expected the pod to request {resource} " in said
    assert said.endswith(f"(offline: gpu-launcher render --env {variables})")


def test_the_functions_of_one_card_cannot_serve_two_entries_in_the_older_dialect() -> None:
    value = "0000:e1:00.0,0000:e1:00.1,0000:e1:00.2"
    assert "is exhausted: 2 entries draw on its 1 (0000:e1:00.0)" in problem_of(TWO_GPUS, {RTX_3090_VARIABLE: value})


def test_a_variable_that_no_entry_asks_for_is_left_over_as_a_whole() -> None:
    _, left_over = claim(
        entries(), {RTX_2060_VARIABLE: "0000:86:00.0", "PCI_RESOURCE_OF_OTHERS": "x", "HOME": "/"}, None
    )
    assert [found.variable for found in left_over] == [RTX_2060_VARIABLE]


def test_what_is_no_address_is_named_with_entry_and_variable() -> None:
    assert problem_of(entries(gpus=[("gpu1", RTX_3090)]), {RTX_3090_VARIABLE: "0000:41:00x0"}) == (
        f"gpu 'gpu1': asks for {RTX_3090}, but "
        f"{RTX_3090_VARIABLE}: '0000:41:00x0' is not a PCI address like 0000:41:00.0; "
        f"the log of the plugin that serves {RTX_3090} may say why"
    )


def test_a_resource_with_a_pci_and_an_mdev_variable_is_refused() -> None:
    environ = {RTX_3090_VARIABLE: "0000:86:00.0", f"MDEV_{RTX_3090_VARIABLE}": "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"}
    assert f"has both {RTX_3090_VARIABLE} and MDEV_{RTX_3090_VARIABLE}" in problem_of(TWO_GPUS, environ)


def test_without_entries_nothing_is_needed() -> None:
    assert claim(entries(), {}, None) == ((), ())


def test_a_device_given_to_another_resource_is_said_to_be() -> None:
    wanted = entries(gpus=[("a", RTX_3090), ("b", RTX_2060)])
    environ = {RTX_3090_VARIABLE: "0000:86:00.0", RTX_2060_VARIABLE: "0000:86:00.0"}
    assert "(0000:86:00.0) was given to other entries" in problem_of(wanted, environ)


DRA_GPU = Entry(kind=EntryKind.GPU, name="gpu1", wants=Request("gpus", "gpu"))
DRA_NIC = Entry(kind=EntryKind.HOST_DEVICE, name="nic", wants=Request("gpus", "nic"))


def test_a_gpu_of_usb_is_refused_by_name() -> None:
    problem = problem_of(entries(gpus=[("u", "example.com/usb")]), {"USB_RESOURCE_EXAMPLE_COM_USB": "1:2"})
    assert problem.endswith("USB_RESOURCE_EXAMPLE_COM_USB is set: it is a USB device; list it under hostDevices")


def test_a_usb_entry_is_one_device_and_the_others_of_its_resource_stay_behind() -> None:
    wanted = entries(host_devices=[("stick", "example.com/usb")])
    (claimed,), (left_over,) = claim(wanted, {"USB_RESOURCE_EXAMPLE_COM_USB": "001:003,1:4,"}, None)
    assert (claimed.device, claimed.alias) == (USBAddress(1, 3), "ua-usb-host-stick")
    assert left_over == LeftOver("USB_RESOURCE_EXAMPLE_COM_USB", (USBAddress(1, 4),))
    assert left_over.problem.fix == "an entry gets one USB device, so give each a resource of its own"


def test_a_request_has_what_dra_gave_and_an_alias_that_says_so() -> None:
    given: dict[Allocated, DeviceID] = {
        Request("gpus", "gpu"): PCIAddress.parse("0000:41:00.0"),
        Request("gpus", "nic"): PCIAddress.parse("0000:42:00.0"),
    }
    claims, _ = claim((DRA_GPU, DRA_NIC), {}, None, given)
    assert [(str(each.device), each.alias, each.variable) for each in claims] == [
        ("0000:41:00.0", "ua-dra-gpu-gpu1", None),
        ("0000:42:00.0", "ua-dra-hostdevice-nic", None),
    ]


def test_a_device_that_dra_gave_is_given_to_no_entry_of_a_variable() -> None:
    wanted = (DRA_GPU, *entries(host_devices=[("other", RTX_3090)]))
    given: dict[Allocated, DeviceID] = {Request("gpus", "gpu"): PCIAddress.parse("0000:86:00.0")}
    claims, left_over = claim(wanted, {RTX_3090_VARIABLE: "0000:86:00.0,0000:af:00.0"}, None, given)
    assert [str(each.device) for each in claims] == ["0000:86:00.0", "0000:af:00.0"]
    assert left_over == ()
    with pytest.raises(UserError, match=r"all that .* has \(0000:86:00.0\) was given to other entries"):
        claim(wanted, {RTX_3090_VARIABLE: "0000:86:00.0"}, None, given)


def test_a_device_that_dra_gave_for_two_requests_is_refused() -> None:
    address = PCIAddress.parse("0000:41:00.0")
    with pytest.raises(UserError) as error:
        claim(
            (DRA_GPU, DRA_NIC),
            {},
            None,
            {Request("gpus", "gpu"): address, Request("gpus", "nic"): address},
        )
    assert str(error.value) == (
        "hostdevice 'nic': is request 'nic' of claim 'gpus', which was given 0000:41:00.0, and so was request 'gpu' of "
        "claim 'gpus', gpu 'gpu1'; expected each device once: the DRA driver's log says why"
    )


def test_a_resource_of_nearly_the_name_of_one_that_the_pod_has_is_said_to_be_meant() -> None:
    meant = f"did you mean the resource of {RTX_3090_VARIABLE}, which is set?"
    for misspelt in (RTX_3090.replace("3090", "3080"), RTX_3090.replace("GA102_", ""), f"example.com/{RTX_3090[11:]}"):
        wanted = entries(gpus=[("gpu1", misspelt), ("gpu2", misspelt)])
        assert problem_of(wanted, {RTX_3090_VARIABLE: "0000:86:00.0"}).count(meant) == 1
    # A vendor's domain is known.
    for name, resource in (("pgpu", "nvidia.com/pgpu"), ("mi300x", "amd.com/mi300x")):
        environ = {f"PCI_RESOURCE_{resource.replace('/', '_').replace('.', '_').upper()}": "0000:86:00.0"}
        said = problem_of(entries(gpus=[("gpu1", name)]), environ)
        assert said.endswith(f"is not set; did you mean {resource}?")
    # Another card's, or one that another entry asks for, is not.
    assert "did you mean" not in problem_of(
        entries(gpus=[("gpu1", RTX_3090)]), {RTX_2060_VARIABLE: "0000:86:00.0", "PATH": "/bin"}
    )
    both = entries(gpus=[("gpu1", RTX_3090.replace("3090", "3080")), ("gpu2", RTX_3090)])
    assert "did you mean" not in problem_of(both, {RTX_3090_VARIABLE: "0000:86:00.0"})


@pytest.mark.parametrize(
    ("resource", "environ", "names_the_plugin"),
    [
        ("nvidia.com/gpu", {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, True),
        ("nvidia.com/gpu", {}, False),
        ("amd.com/gpu", {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, False),
    ],
)
def test_a_gpu_of_nvidias_device_plugin_for_containers_is_called_one(
    resource: str, environ: dict[str, str], names_the_plugin: bool
) -> None:
    with pytest.raises(UserError) as error:
        claim(entries(gpus=[("a", resource)]), environ, None)
    assert ("NVIDIA's device plugin for containers serves it" in error.value.problem.wrong) is names_the_plugin
    assert ("nvidia.com/pgpu with the shipped config" in error.value.problem.fix) is names_the_plugin
    assert f"_{resource.split('.')[0].upper()}_COM_GPU is not set" in error.value.problem.wrong


def test_whoever_has_both_kinds_of_gpu_is_told_the_name_of_the_one_for_vms() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "PCI_RESOURCE_NVIDIA_COM_PGPU": "0000:41:00.0"}
    with pytest.raises(UserError) as error:
        claim(entries(gpus=[("a", "nvidia.com/gpu")]), environ, None)
    assert "plugin for containers" in error.value.problem.wrong
    assert error.value.problem.fix == "did you mean the resource of PCI_RESOURCE_NVIDIA_COM_PGPU, which is set?"
