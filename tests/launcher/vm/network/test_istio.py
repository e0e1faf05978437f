"""Istio's proxy beside passt: who has which port, and how the pod gets the proxy."""

from pathlib import Path

import pytest

from launcher.pod.metadata import labels
from launcher.vm.network.checks import reached_elsewhere
from launcher.vm.network.guest import PORTS, PasstAttachment, attached, is_injected
from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vm.network.vms import vmi_of
from tests.launcher.vms import read_manifest

#: Envoy's and the agent's, as Istio's documentation has them.
ISTIOS = {15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}


def injected(tmp_path: Path, metadata: str, interface: str = "masquerade: {}") -> VirtualMachineInstance:
    path = tmp_path / "vm.yaml"
    vmi_of(tmp_path, interface)
    path.write_text(path.read_text().replace("{name: vm}", f"{{name: vm, {metadata}}}"))
    return read_manifest(path)


def test_no_port_of_the_proxys_reaches_the_guest(tmp_path: Path) -> None:
    (card,) = attached(vmi_of(tmp_path, "passt: {}").spec, reserved=PORTS)
    assert isinstance(card.to, PasstAttachment)
    tcp, udp = (
        {port for first, last in card.to.forwards.ranges(each) for port in range(first, last + 1)}
        for each in ("TCP", "UDP")
    )
    assert set(range(1 << 16)) - tcp == ISTIOS
    assert len(udp) == 1 << 16


def test_a_port_of_the_proxys_that_is_listed_is_said_and_left_out(tmp_path: Path) -> None:
    listed = (
        "masquerade: {}, ports: [{port: 22}, {port: 15090, protocol: UDP}], portRanges: [{start: 15088, end: 15091}]"
    )
    cards = attached(vmi_of(tmp_path, listed).spec, reserved=PORTS)
    (card,) = cards
    assert isinstance(card.to, PasstAttachment)
    assert card.to.forwards.ranges("TCP") == ((22, 22), (15088, 15089), (15091, 15091))
    assert card.to.forwards.ranges("UDP") == ((15090, 15090),)
    (finding,) = reached_elsewhere(cards)
    assert str(finding) == (
        "interface 'default': lists a port of Istio's proxy, which is in the pod: it does not reach the guest; take it "
        "out of the interface's ports, and have the guest's service listen on another one"
    )


@pytest.mark.parametrize(
    ("metadata", "is_there"),
    [
        ("annotations: {sidecar.istio.io/inject: 'true'}", True),
        ("annotations: {sidecar.istio.io/inject: 'True'}", True),
        ("labels: {sidecar.istio.io/inject: 'true'}", True),
        ("annotations: {sidecar.istio.io/inject: 'false'}, labels: {sidecar.istio.io/inject: 'true'}", False),
        ("annotations: {sidecar.istio.io/inject: 'yes'}", False),
        ("labels: {a: b}", False),
    ],
)
def test_the_pod_has_the_label_that_istios_webhook_looks_for(tmp_path: Path, metadata: str, is_there: bool) -> None:
    vm = injected(tmp_path, metadata).metadata
    assert is_injected(vm) is is_there
    assert (labels(vm).get("sidecar.istio.io/inject") == "true") is is_there
