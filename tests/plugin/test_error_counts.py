"""PCIe errors, from the kernel's counters to the kubelet and Prometheus."""

import pytest

from pci.address import PCIAddress
from pci.host import Errors
from plugin.cards.names import PCIIDs
from plugin.node.error_counts import ErrorCounts
from tests.conftest import Machine
from tests.kernel import aer
from tests.kubelet import Kubelet
from tests.plugin.daemon import BOTH, RTX_3090, fetch, free_port, serve, wait_until
from tests.snapshots import snapshot_of

GPU = "0000:01:00.0"
AT = PCIAddress.parse(GPU)


def counted(*looks: Errors) -> ErrorCounts:
    counts = ErrorCounts()
    for errors in looks:
        counts = counts.then({AT: errors})
    return counts


def test_what_there_was_at_the_first_look_has_not_grown() -> None:
    assert counted().grown(AT) == Errors(0, 0, 0)
    assert counted(Errors(5, 2, 1)).grown(AT) == Errors(0, 0, 0)


def test_growth_is_since_the_first_look() -> None:
    assert counted(Errors(5, 2, 1), Errors(6, 2, 1), Errors(9, 3, 1)).grown(AT) == Errors(4, 1, 0)


def test_a_function_that_is_not_seen_stays_as_it_was() -> None:
    assert counted(Errors(0, 0, 0), Errors(0, 0, 1)).then({}).grown(AT) == Errors(0, 0, 1)


def test_counters_that_begin_anew_are_a_first_look() -> None:
    """After remove and rescan."""
    counts = counted(Errors(5, 0, 0), Errors(9, 0, 3), Errors(0, 0, 0))
    assert counts.grown(AT) == Errors(0, 0, 0)
    assert counts.then({AT: Errors(0, 1, 0)}).grown(AT) == Errors(0, 1, 0)


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        (Errors(1000, 0, 0), None),
        (Errors(0, 1, 0), "has had nonfatal PCIe errors since the plugin began (AER of 0000:01:00.0 (VGA))"),
        (Errors(0, 1, 1), "has had fatal PCIe errors since the plugin began (AER of 0000:01:00.0 (VGA))"),
    ],
)
def test_lost_transactions_make_a_card_unhealthy(
    machine: Machine, pci_ids: PCIIDs, errors: Errors, says: str | None
) -> None:
    snapshot = snapshot_of(machine("two-rtx-3090"), pci_ids, errors=counted(Errors(0, 0, 0), errors))
    assert {device: trouble.wrong for device, trouble in snapshot.troubles.items()} == ({GPU: says} if says else {})


def metrics(port: int) -> dict[str, float]:
    _, page = fetch(port, "/metrics")
    lines = page.splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")
    }


def test_errors_under_a_guest_are_told_to_the_kubelet_and_counted(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys, port = copied_machine("two-rtx-3090"), free_port()
    aer(sys, GPU, correctable=3, fatal=1)
    kubelet.pods["vms/one"] = {RTX_3090: {GPU}}
    flags = ("--pod-resources", kubelet.pod_resources, "--metrics", str(port))
    fatal = f'gpu_plugin_pcie_errors_total{{device="{GPU}",function="{GPU}",severity="fatal"}}'
    with serve(sys, kubelet.directory, *flags) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        wait_until(lambda: metrics(port).get(fatal) == 1)
        aer(sys, GPU, correctable=3, fatal=2)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
        plugin.wait_for_line("has had fatal PCIe errors")
        wait_until(lambda: metrics(port)[fatal] == 2)
        # Removed and found again.
        aer(sys, GPU)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
