from pathlib import Path

from launcher.vm.network.checks import not_tuned, reached_elsewhere
from launcher.vm.network.guest import attached
from tests.launcher.cases import case
from tests.launcher.vm.network.vms import vmi_of
from tests.launcher.vms import read_manifest

QUEUES = "      networkInterfaceMultiqueue: true\n"


def test_what_passt_has_no_word_for_is_said_and_nothing_else(tmp_path: Path) -> None:
    said = "masquerade: {}, dhcpOptions: {bootFileName: pxelinux.0, tftpServerName: '', ntpServers: [192.0.2.1]}"
    vmi = vmi_of(tmp_path, said, devices=QUEUES)
    assert [finding.problem.subject for finding in not_tuned(vmi.spec.domain.devices)] == [
        "spec.domain.devices.networkInterfaceMultiqueue",
        "spec.domain.devices.interfaces[0].dhcpOptions.bootFileName",
        "spec.domain.devices.interfaces[0].dhcpOptions.ntpServers",
    ]


def test_nothing_is_said_of_a_card_that_is_not_there(tmp_path: Path) -> None:
    options = "dhcpOptions: {bootFileName: pxelinux.0}"
    assert list(not_tuned(vmi_of(tmp_path, None, devices=QUEUES).spec.domain.devices)) == []
    absent = vmi_of(tmp_path, f"masquerade: {{}}, state: absent, {options}", devices=QUEUES)
    assert list(not_tuned(absent.spec.domain.devices)) == []


def test_ports_that_an_earlier_card_has_are_said() -> None:
    cards = attached(read_manifest(case("networks-untold").vm).spec)
    assert [finding.problem.subject for finding in reached_elsewhere(cards)] == ["interface 'nine'"]
    assert list(reached_elsewhere(attached(read_manifest(case("networks").vm).spec))) == []
