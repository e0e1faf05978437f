"""/dev/iommu on its way to libvirt. That the kernel takes the option is seen in the lab's kernel alone: this machine's
has no IOMMUFD."""

import json
import logging
import os
from pathlib import Path

import pytest

from launcher.hook.kubevirt_domain import read_vmi
from launcher.runtime import guest
from launcher.runtime.iommufd import IOMMUFD, opened
from launcher.vm.facts import Facts
from launcher.vm.guest_pci.addresses import Layout
from program.errors import Refusal, UserError
from tests.launcher.cases import case
from tests.launcher.guests import a_vm
from tests.launcher.vms import domain_of, read_manifest, write_vmi

ASKS = case("iommufd").golden.read_text()


def test_a_container_without_it_has_none(tmp_path: Path) -> None:
    assert opened(tmp_path / "iommu") is None


def test_what_does_not_take_the_option_is_given_on_and_counts_for_the_user() -> None:
    found = opened(Path("/dev/null"))
    assert found is not None
    assert not found.counts_per_process
    assert not os.get_inheritable(found.descriptor)
    os.close(found.descriptor)


@pytest.mark.parametrize("per_process", [True, False])
def test_libvirt_is_given_the_descriptor_and_the_log_has_how_it_counts(
    per_process: bool, embedded_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = domain_of(read_manifest(write_vmi(tmp_path / "vm.yaml")), Layout(), Facts(kvm=False))
    descriptor = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    vm = a_vm()
    with guest.connected(embedded_uri, vm) as connection, guest.defined(connection, text, vm) as domain:
        with caplog.at_level(logging.WARNING):
            guest.give_iommufd(domain, ASKS, IOMMUFD(descriptor, per_process))
        assert ("the limit of each has to cover it" in caplog.text) is not per_process
        guest.give_iommufd(domain, text, None)  # does not ask for it
        with pytest.raises(Refusal, match="/dev/iommu: could not be opened; gpu-launcher check says why"):
            guest.give_iommufd(domain, ASKS, None)
    os.close(descriptor)


def test_a_hypervisor_that_takes_no_descriptor_is_refused(tmp_path: Path) -> None:
    text = domain_of(read_manifest(write_vmi(tmp_path / "vm.yaml")), Layout(), Facts())
    vm = a_vm()
    refused = pytest.raises(Refusal, match=r"cannot take /dev/iommu: .* not supported .*; expected a libvirt on this")
    with guest.connected("test:///default", vm) as connection, guest.defined(connection, text, vm) as domain, refused:
        guest.give_iommufd(domain, ASKS, IOMMUFD(0, counts_per_process=True))


def test_the_hook_leaves_the_choice_to_kubevirts_launcher() -> None:
    vmi = {"metadata": {"annotations": {"gpu-launcher.dev/vfio": "iommufd"}}}
    with pytest.raises(UserError, match=r"gpu-launcher\.dev/vfio: KubeVirt's launcher .* chooses by which way"):
        read_vmi(json.dumps(vmi).encode())
