"""Binding conditions, where the scheduler waits for a card to be bound: before the claim's pod is on the node, and back
again where the pod goes elsewhere."""

from contextlib import AbstractContextManager

from plugin.dra.claims import awaits, has_conditions
from tests.plugin.dra.cluster import NODE, wait_until
from tests.plugin.dra.test_binding import FIRST, GPU, SECOND, Node
from tests.plugin.dra.test_binding import node as node
from tests.processes import Program

FAILED = "gpu-launcher.dev/Failed"


def driver(node: Node) -> AbstractContextManager[Program]:
    node.cluster.api.takes_conditions = True
    return node.driver()


def promises(node: Node, *names: str) -> bool:
    published = node.cluster.published()
    return {name for name, each in published.items() if each.get("bindingConditions") == ["Ready"]} == {*names}


def test_a_card_is_bound_before_its_pod_comes_and_given_back_if_none_does(node: Node) -> None:
    with driver(node):
        wait_until(lambda: promises(node, FIRST, SECOND))
        claim = node.cluster.claim(FIRST)
        wait_until(lambda: "Ready" in node.cluster.status(claim).get(FIRST, {}))
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
        told = node.cluster.status(claim)[FIRST]
        assert told == {"Ready": f"{GPU}: bound to vfio for this claim", "address": GPU, "bound": [GPU, "0000:01:00.1"]}
        assert node.cluster.specifications() == {}, "its pod is not here"
        node.cluster.deallocate(claim)
        wait_until(lambda: node.is_daily() and node.cluster.checkpoint() == {})
        # A pod that comes has what was bound for it.
        bound, claim = len(node.kernel.bound), node.cluster.claim(SECOND)
        wait_until(lambda: "Ready" in node.cluster.status(claim).get(SECOND, {}))
        assert node.prepare(claim) == ""
        assert len(node.kernel.bound) == bound + 2  # once each
        assert node.unprepare(claim) == ""


def test_a_card_that_cannot_be_bound_is_the_claims_failure_and_tainted(node: Node) -> None:
    node.kernel.refusing.add((GPU, "vfio-pci"))
    with driver(node):
        wait_until(lambda: promises(node, FIRST, SECOND))
        claim = node.cluster.claim(FIRST)
        wait_until(lambda: FAILED in node.cluster.status(claim).get(FIRST, {}))
        assert f"{GPU}: is on no driver, expected vfio-pci" in node.cluster.status(claim)[FIRST][FAILED]
        assert (node.is_daily(), node.cluster.checkpoint()) == (True, {})
        node.cluster.wait_for(SECOND)
        assert str(node.taint(FIRST)).startswith("could-not-be-bound-to-vfio-0000-01-00.0-is-on-no-driver")


def test_a_card_is_tainted_too_where_a_write_to_sysfs_fails(node: Node) -> None:
    unbind = node.cluster.sys / "bus/pci/drivers/snd_hda_intel/unbind"
    unbind.unlink()
    unbind.mkdir()
    with driver(node):
        wait_until(lambda: promises(node, FIRST, SECOND))
        claim = node.cluster.claim(FIRST)
        wait_until(lambda: FAILED in node.cluster.status(claim).get(FIRST, {}))
        assert "unbind: Is a directory, and everything is as it was before" in node.cluster.status(claim)[FIRST][FAILED]
        node.cluster.wait_for(SECOND)
        assert str(node.taint(FIRST)).startswith("could-not-be-bound-to-vfio-echo-0000-01-00.1-")


def test_a_driver_that_may_not_write_status_promises_nothing(node: Node) -> None:
    """With a promise that nobody keeps, a card would be for no pod. test_binding.py has where the field is dropped."""
    with driver(node) as plugin:
        wait_until(lambda: promises(node, FIRST, SECOND))
        node.cluster.api.forbids = {"PUT"}
        node.cluster.claim(FIRST)
        plugin.wait_for_line("cards are bound only when their pods are on this node: the API server does not allow")
        wait_until(lambda: promises(node))
        claim = node.cluster.claim(SECOND)
        assert not has_conditions(claim, NODE)
        assert node.prepare(claim) == ""
        assert node.unprepare(claim) == ""


def test_a_claim_waits_for_this_node_until_each_of_its_devices_is_decided() -> None:
    def claim(*conditions: tuple[str, str], pool: str = NODE) -> dict[str, object]:
        its = {"driver": "gpu-launcher.dev", "pool": pool, "device": "a"}
        results = [{**its, "request": "gpu", "bindingConditions": ["Ready"]}]
        told = [{**its, "conditions": [{"type": kind, "status": status} for kind, status in conditions]}]
        return {"status": {"allocation": {"devices": {"results": results}}, "devices": told}}

    assert awaits(claim(), NODE)
    assert awaits(claim(("Ready", "False"), (FAILED, "False")), NODE)
    assert not awaits(claim(("Ready", "True")), NODE)
    assert not awaits(claim((FAILED, "True")), NODE)
    assert not awaits(claim(pool="node-2"), NODE)
    assert not awaits({}, NODE)
