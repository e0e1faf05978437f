from launcher.claims import claim
from launcher.hostdevs import Card, whole_cards
from launcher.manifest.devices import Devices
from pci.sysfs import Host, read_host
from tests.conftest import Machine
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, RTX_3090, RTX_3090_VARIABLE, devices


def cards_of(wanted: Devices, environ: dict[str, str], host: Host | None) -> tuple[Card, ...]:
    return whole_cards(claim(wanted, environ, host)[0], host)


def functions(card: Card) -> list[str]:
    return list(map(str, card.functions))


def test_a_claimed_gpu_brings_its_audio_usb_and_ucsi(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    (card,) = cards_of(devices(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:01:00.0"}, host)
    assert functions(card) == ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2", "0000:01:00.3"]


def test_two_cards_each_bring_their_own(machine: Machine) -> None:
    host = read_host(machine("two-rtx-3090"))
    wanted = devices(gpus=[("a", RTX_3090), ("b", RTX_3090)])
    first, second = cards_of(wanted, {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0"}, host)
    assert functions(first) == ["0000:e1:00.0", "0000:e1:00.1"]
    assert functions(second) == ["0000:01:00.0", "0000:01:00.1"]


def test_a_companion_that_another_entry_claims_stays_with_that_entry(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    wanted = devices(gpus=[("g", RTX_2060)], host_devices=[("audio", "example.com/audio")])
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", "PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:01:00.1"}
    gpu, audio = cards_of(wanted, environ, host)
    assert functions(gpu) == ["0000:01:00.0", "0000:01:00.2", "0000:01:00.3"]
    assert functions(audio) == ["0000:01:00.1"]


def test_other_cards_of_the_group_and_the_root_port_are_no_companions(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    (card,) = cards_of(devices(gpus=[("g", RTX_3090)]), {RTX_3090_VARIABLE: "0000:02:00.0"}, host)
    assert functions(card) == ["0000:02:00.0", "0000:02:00.1"]


def test_a_function_of_the_slot_in_another_group_is_no_companion(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    link = sys / "bus/pci/devices/0000:01:00.1/iommu_group"
    link.unlink()
    link.symlink_to("../../../../kernel/iommu_groups/99")
    (card,) = cards_of(devices(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:01:00.0"}, read_host(sys))
    assert functions(card) == ["0000:01:00.0", "0000:01:00.2", "0000:01:00.3"]


def test_a_virtual_function_brings_nobody(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    wanted = devices(host_devices=[("vf", "example.com/vf")])
    (card,) = cards_of(wanted, {"PCI_RESOURCE_EXAMPLE_COM_VF": "0000:02:00.1"}, host)
    assert functions(card) == ["0000:02:00.1"]


def test_without_sysfs_a_claim_is_its_function_alone(machine: Machine) -> None:
    for host, missing in (
        (None, "0000:86:00.0 was not looked up: there is no --sysfs"),
        (read_host(machine("two-rtx-3090")), "0000:86:00.0 is not in sysfs"),
    ):
        (card,) = cards_of(devices(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:86:00.0"}, host)
        assert (functions(card), card.missing) == (["0000:86:00.0"], missing)


def test_a_companion_that_cannot_be_read_is_missed_by_name(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1/uevent").unlink()
    (card,) = cards_of(devices(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:01:00.0"}, read_host(sys))
    assert card.missing == "0000:01:00.1, on its slot and in its group, cannot be read in sysfs"
