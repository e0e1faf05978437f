"""The driver as a process, between an API server and a kubelet."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pci import device_metadata
from pci.address import PCIAddress
from pci.slices import DRIVER
from tests.apiserver import SLICES
from tests.conftest import Machine
from tests.kernel import bind
from tests.plugin.daemon import BOTH
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster, wait_until

FIRST, SECOND = "pci-0000-01-00-0", "pci-0000-e1-00-0"


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    with running_cluster(short_dir, copied_machine("two-rtx-3090")) as cluster:
        yield cluster


def refused(cluster: Cluster, claim: dict[str, Any]) -> str:
    (answer,) = cluster.kubelet.prepare(claim).values()
    assert not answer.devices
    return answer.error


def prepared(cluster: Cluster, claim: dict[str, Any]) -> list[Any]:
    (answer,) = cluster.kubelet.prepare(claim).values()
    assert answer.error == ""
    return list(answer.devices)


# Published.


def test_the_nodes_cards_are_published_and_kept_as_they_are(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        (only,) = cluster.api.slices()
        writes = cluster.api.writes
        assert writes == 1
        # Somebody deletes it, edits it, writes one beside it that nobody knows.
        cluster.api.remove(f"{SLICES}/{only['metadata']['name']}")
        cluster.wait_for(FIRST, SECOND)
        (edited,) = cluster.api.slices()
        edited["spec"]["devices"] = edited["spec"]["devices"][:1]
        cluster.api.put(f"{SLICES}/{edited['metadata']['name']}", edited)
        cluster.wait_for(FIRST, SECOND)
        edited["metadata"] = {"name": "another"}
        cluster.api.put(f"{SLICES}/another", edited)
        wait_until(lambda: [each["metadata"]["name"] for each in cluster.api.slices()] == [only["metadata"]["name"]])
        cluster.wait_for(FIRST, SECOND)
        cluster.api.forget()
        writes = cluster.api.writes
        time.sleep(1.5)
        assert cluster.api.writes == writes
    assert cluster.published().keys() == {FIRST, SECOND}  # the next plugin finds them


def test_a_plugin_that_starts_again_writes_nothing(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
    writes, requests = cluster.api.writes, cluster.api.requests
    with cluster.driver():
        wait_until(lambda: cluster.api.requests >= requests + 3)  # its node, the list, a watch
        assert cluster.api.writes == writes


def test_a_generation_that_none_comes_after_is_begun_anew(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        (only,) = cluster.api.slices()
        only["spec"]["pool"]["generation"] = (1 << 63) - 1
        only["spec"]["devices"] = []
        cluster.api.put(f"{SLICES}/{only['metadata']['name']}", only)
        cluster.wait_for(FIRST, SECOND)
        assert cluster.api.slices()[0]["spec"]["pool"]["generation"] == 1


def test_an_unhealthy_card_is_tainted_and_a_mended_one_is_not(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        bind(cluster.sys, "0000:01:00.1", "snd_hda_intel")
        cluster.wait_for(SECOND)
        assert cluster.published()[FIRST]["taints"][0]["effect"] == "NoSchedule"
        assert cluster.kubelet.health()[SECOND] == (1, "")
        health, why = cluster.kubelet.health()[FIRST]
        assert (health, "0000:01:00.1 (audio) is bound to snd_hda_intel" in why) == (2, True)
        assert cluster.kubelet.health("v1alpha1") == cluster.kubelet.health("v1"), "kubelets before 1.37 ask so"
        bind(cluster.sys, "0000:01:00.1", "vfio-pci")
        cluster.wait_for(FIRST, SECOND)


def test_where_taints_are_dropped_an_unhealthy_card_is_left_out(cluster: Cluster) -> None:
    cluster.api.takes_taints = False
    with cluster.driver() as plugin:
        cluster.wait_for(FIRST, SECOND)
        bind(cluster.sys, "0000:01:00.1", "snd_hda_intel")
        wait_until(lambda: cluster.published().keys() == {SECOND})
        writes = cluster.api.writes
        time.sleep(1.2)
        assert cluster.api.writes == writes
        bind(cluster.sys, "0000:01:00.1", "vfio-pci")
        cluster.wait_for(FIRST, SECOND)
    assert any("takes no taints of devices" in line for line in plugin.log)


def test_an_api_server_that_goes_away_and_comes_back_has_what_is_then(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        cluster.api.stop()
        bind(cluster.sys, "0000:01:00.1", "snd_hda_intel")
        time.sleep(1)
        cluster.api.start()
        cluster.wait_for(SECOND)
        cluster.api.stop()
        bind(cluster.sys, "0000:01:00.1", "vfio-pci")
        time.sleep(1)
        cluster.api.start()
        cluster.wait_for(FIRST, SECOND)


def test_a_config_that_serves_nothing_by_dra_withdraws_the_slices(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        (cluster.directory / "config.yaml").write_text("serve: device-plugin\n")
        wait_until(lambda: cluster.api.slices() == [])


# Prepared.


def test_a_claims_card_is_in_its_container_with_all_that_the_launcher_reads(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(
            SECOND, name="vm-gpu-x7k", metadata={"annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"}}
        )
        uid = claim["metadata"]["uid"]
        (device,) = prepared(cluster, claim)
        assert (device.request_names, device.pool_name, device.device_name) == (["gpu-0"], NODE, SECOND)
        assert device.cdi_device_ids == [f"gpu-launcher.dev/claim={uid}_gpu-0"]
        specification = cluster.specifications()[uid]
        assert (specification["cdiVersion"], specification["kind"]) == ("0.5.0", "gpu-launcher.dev/claim")
        (its,) = specification["devices"]
        assert its["name"] == f"{uid}_gpu-0"
        paths = [node["path"] for node in its["containerEdits"]["deviceNodes"]]
        assert paths == ["/dev/vfio/vfio", "/dev/vfio/71"]
        assert "env" not in its["containerEdits"]
        (mount,) = its["containerEdits"]["mounts"]
        where = device_metadata.IN_CONTAINER / device_metadata.of_template("gpu", "gpu-0")
        assert mount["containerPath"] == f"{where}/{DRIVER}{device_metadata.SUFFIX}"
        assert "ro" in mount["options"]
        file = Path(mount["hostPath"])
        assert file.stat().st_mode & 0o777 == 0o644
        assert device_metadata.decode(file.read_text(), "gpu-0") == PCIAddress.parse("0000:e1:00.0")
        beta, alpha = map(json.loads, file.read_text().splitlines())
        assert beta["requests"][0]["devices"][0]["attributes"] == cluster.published()[SECOND]["attributes"]
        assert (beta.pop("apiVersion"), alpha.pop("apiVersion")) == device_metadata.VERSIONS
        assert beta == alpha
        assert cluster.kubelet.unprepare(claim) == {uid: ""}
        assert (cluster.specifications(), cluster.checkpoint(), file.exists()) == ({}, {}, False)


def test_prepare_and_unprepare_may_be_asked_again_and_the_plugin_may_end_between(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(FIRST, SECOND)
        answer = prepared(cluster, claim)
        assert [device.device_name for device in answer] == [FIRST, SECOND]
        assert prepared(cluster, claim) == answer
    with cluster.driver():
        assert prepared(cluster, claim) == answer
        # What its pod has depends neither on the card's health nor on the API server.
        bind(cluster.sys, "0000:01:00.1", "snd_hda_intel")
        assert prepared(cluster, claim) == answer
        cluster.api.stop()
        assert prepared(cluster, claim) == answer
        assert set(cluster.kubelet.unprepare(claim).values()) == {""}
        assert set(cluster.kubelet.unprepare(claim).values()) == {""}
    assert (cluster.specifications(), cluster.checkpoint()) == ({}, {})


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(bytes(file.stat().st_size)),
        lambda file: file.write_text(file.read_text().replace("gpu-", "other-")),
    ],
    ids=["removed", "empty", "cut", "zeros", "another claim's"],
)
def test_files_that_are_not_as_they_were_written_are_written_again(
    cluster: Cluster, spoil: Callable[[Path], object]
) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(FIRST, SECOND)
        prepared(cluster, claim)
        before, metadata = cluster.specifications(), sorted(cluster.state.glob("metadata/*/*"))
        told = [file.read_text() for file in metadata]
        for lost in (list(cluster.cdi.iterdir()), metadata[:1], [*cluster.cdi.iterdir(), *metadata]):
            for file in lost:
                spoil(file)
            prepared(cluster, claim)
            assert cluster.specifications() == before
            assert [file.read_text() for file in metadata] == told


def test_a_card_of_one_claim_is_refused_to_another(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        one, other = cluster.claim(FIRST, name="one"), cluster.claim(SECOND, FIRST, name="other")
        prepared(cluster, one)
        assert refused(cluster, other) == (
            "0000:01:00.0 of claim vms/other: is prepared for claim vms/one already; delete this pod, to have its "
            "claim allocated anew"
        )
        assert cluster.specifications().keys() == {one["metadata"]["uid"]}
        cluster.kubelet.unprepare(one)
        prepared(cluster, other)


def test_each_claim_of_a_request_has_an_answer_of_its_own(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        good, bad = cluster.claim(FIRST), cluster.claim("pci-0000-99-00-0")
        answers = cluster.kubelet.prepare(good, bad)
        assert [device.device_name for device in answers[good["metadata"]["uid"]].devices] == [FIRST]
        assert "is not a device of this node" in answers[bad["metadata"]["uid"]].error


REFUSED = {
    "another uid": ({"metadata": {"uid": "another"}}, "has the uid another"),
    "admin access": (
        {"results": [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": FIRST, "adminAccess": True}]},
        "is allocated with admin access",
    ),
    "another node": (
        {"results": [{"request": "gpu", "driver": DRIVER, "pool": "node-2", "device": FIRST}]},
        "is of the pool node-2",
    ),
    "twice": (
        {"results": [{"request": each, "driver": DRIVER, "pool": NODE, "device": FIRST} for each in ("a", "b")]},
        f"{FIRST} of claim vms/claim-0: is allocated twice in one claim",
    ),
    "a config": ({"config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]}, "has a config for gpu-launcher.dev"),
    "a path for a name": (
        {"metadata": {"annotations": {"resource.kubernetes.io/pod-claim-name": "../../etc"}}},
        "'../../etc'; expected a name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_claim_may_not_say(cluster: Cluster, case: str) -> None:
    changes, why = REFUSED[case]
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(FIRST, **json.loads(json.dumps(changes)))
        if case == "another uid":
            claim = {**claim, "metadata": {**claim["metadata"], "uid": "0c6f"}}
        assert why in refused(cluster, claim)
        assert (cluster.specifications(), cluster.checkpoint()) == ({}, {})


def test_a_claim_that_is_gone_or_not_allocated_is_refused(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(FIRST)
        del claim["status"]["allocation"]
        assert "claim vms/claim-0: is not allocated" in refused(cluster, claim)
        cluster.delete(claim)
        assert "claim vms/claim-0: does not exist" in refused(cluster, claim)
        cluster.api.stop()
        assert "claim vms/claim-0: the API server does not say" in refused(cluster, claim)


def test_a_card_that_became_unhealthy_after_it_was_allocated_is_refused_by_name(cluster: Cluster) -> None:
    with cluster.driver("serve: dra\n", "--rescan", "1000"):
        cluster.wait_for(FIRST, SECOND)
        bind(cluster.sys, "0000:01:00.1", "snd_hda_intel")
        why = refused(cluster, cluster.claim(FIRST))
        assert why.startswith("0000:01:00.0 of nvidia.com/GA102_GEFORCE_RTX_3090: cannot be handed out: it is in")
        assert (cluster.specifications(), cluster.checkpoint()) == ({}, {})


def test_a_claim_with_devices_of_others_alone_has_none_of_ours(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(results=[{"request": "nic", "driver": "nic.example.com", "pool": NODE, "device": "a"}])
        assert prepared(cluster, claim) == []


def test_an_alternative_of_a_request_goes_by_the_requests_name(cluster: Cluster) -> None:
    """For the kubelet, which gives the container what its request is called, and for KubeVirt, which looks for that
    name in the directory and in the file (pkg/dra/utils.go, d923fdb815)."""
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        result = {"request": "gpu/big", "driver": DRIVER, "pool": NODE, "device": FIRST}
        claim = cluster.claim(
            results=[result], metadata={"annotations": {"resource.kubernetes.io/pod-claim-name": "c"}}
        )
        (device,) = prepared(cluster, claim)
        assert device.request_names == ["gpu"]
        assert device.cdi_device_ids[0].endswith("_gpu")
        (its,) = cluster.specifications()[claim["metadata"]["uid"]]["devices"]
        (mount,) = its["containerEdits"]["mounts"]
        assert Path(mount["containerPath"]).parent == device_metadata.IN_CONTAINER / device_metadata.of_template(
            "c", "gpu"
        )
        (request,) = next(device_metadata.documents(Path(mount["hostPath"]).read_text()))["requests"]
        assert (request["name"], len(request["devices"])) == ("gpu", 1)


def test_an_extended_resource_has_the_device_plugins_variable(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        request = "container-0-request-0"
        claim = cluster.claim(
            metadata={"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}},
            results=[
                {"request": request, "driver": DRIVER, "pool": NODE, "device": device} for device in (SECOND, FIRST)
            ],
        )
        first, second = prepared(cluster, claim)
        uid = claim["metadata"]["uid"]
        assert (first.cdi_device_ids, second.cdi_device_ids) == ([f"gpu-launcher.dev/claim={uid}_{request}"], [])
        (its,) = cluster.specifications()[uid]["devices"]
        (variable,) = its["containerEdits"]["env"]
        assert variable == "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090=0000:01:00.0,0000:e1:00.0"


def test_a_claim_that_was_allocated_anew_has_the_new_card(cluster: Cluster) -> None:
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        claim = cluster.claim(FIRST)
        prepared(cluster, claim)
        claim["status"]["allocation"]["devices"]["results"][0]["device"] = SECOND
        (device,) = prepared(cluster, claim)
        assert device.device_name == SECOND
        prepared(cluster, cluster.claim(FIRST))


# The file that outlives the plugin.


def test_another_boot_forgets_what_was_prepared(cluster: Cluster) -> None:
    boot = cluster.sys.parent / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        one = cluster.claim(FIRST)
        prepared(cluster, one)
    boot.write_text("two\n")
    with cluster.driver():
        wait_until(lambda: cluster.specifications() == {})
        prepared(cluster, cluster.claim(FIRST))
        assert set(cluster.kubelet.unprepare(one).values()) == {""}


def test_a_checkpoint_that_is_not_what_was_written_is_no_reason_to_give_a_card_twice_or_none(cluster: Cluster) -> None:
    config = f"serve: dra\noffer: [{{address: '{BOTH[1]}', resource: example.com/gpu, serve: device-plugin}}]\n"
    with cluster.driver(config):
        cluster.wait_for(FIRST)
        prepared(cluster, cluster.claim(FIRST))
    file = cluster.state / "checkpoint.json"
    text = file.read_text()
    file.write_text(text.replace("01:00.0", "02:00.0"))
    with cluster.driver(config) as plugin:
        plugin.wait_for_line(f"{BOTH[1]} (GA102 [GeForce RTX 3090]) is on offer as example.com/gpu")
        wait_until(lambda: "taints" in cluster.published().get(FIRST, {}))
        (taint,) = cluster.published()[FIRST]["taints"]
        assert taint["value"].startswith("may-have-been-prepared-for-a-claim")
        unknown = "is not what the driver wrote, so which cards are taken is not known (its checksum is wrong)"
        assert unknown in refused(cluster, cluster.claim(FIRST))
        assert any(f"which claims have what is not known: {file}: {unknown}" in line for line in plugin.log)
        file.unlink()  # as the error says; the next claim has the file read again
        assert prepared(cluster, cluster.claim(FIRST))
        cluster.wait_for(FIRST)


def test_files_of_claims_that_are_not_prepared_are_removed(cluster: Cluster) -> None:
    cluster.cdi.mkdir()
    (cluster.cdi / "gpu-launcher.dev-claim_0b6f.json").write_text("{}")
    (cluster.cdi / "nvidia.yaml").write_text("{}")
    with cluster.driver():
        wait_until(lambda: [file.name for file in cluster.cdi.iterdir()] == ["nvidia.yaml"])


def test_two_plugins_of_one_node_never_give_out_a_card_twice(cluster: Cluster) -> None:
    with cluster.driver() as old:
        cluster.wait_for(FIRST, SECOND)
        prepared(cluster, cluster.claim(FIRST, name="one"))
        with cluster.driver():
            wait_until(lambda: len(list(cluster.kubelet.registry.glob("*.sock"))) == 2)
            assert "is prepared for claim vms/one already" in refused(cluster, cluster.claim(FIRST, name="two"))
            old.send(signal.SIGTERM)
            assert old.end() == 0
            assert "is prepared for claim vms/one already" in refused(cluster, cluster.claims["two"])
            cluster.wait_for(FIRST, SECOND)


# One of the two.


def test_a_card_that_the_device_plugin_gave_out_is_for_no_claim_until_its_pod_ends(cluster: Cluster) -> None:
    from tests.kubelet import running_kubelet

    with running_kubelet(cluster.directory) as kubelet:
        kubelet.give("vms/vm-1", "nvidia.com/GA102_GEFORCE_RTX_3090", ["0000:01:00.0"])
        with cluster.driver():
            cluster.wait_for(SECOND)
            why = refused(cluster, cluster.claim(FIRST))
            assert "is in use by pod vms/vm-1" in why
            assert "it has it from the device plugin" in why
            kubelet.free("vms/vm-1")
            kubelet._write_checkpoint()
            cluster.wait_for(FIRST, SECOND)


def test_a_card_of_a_claim_is_not_the_device_plugins_until_the_claim_ends(cluster: Cluster) -> None:
    claim = cluster.claim(FIRST)
    with cluster.driver():
        cluster.wait_for(FIRST, SECOND)
        prepared(cluster, claim)
    # A pod of the new config has its sockets in the registry, too, where the stand-in looks for drivers alone.
    with cluster.driver("serve: device-plugin\n") as plugin:
        wait_until(lambda: cluster.api.slices() == [])
        plugin.wait_for_line("is prepared for the ResourceClaim vms/claim-0")
        assert set(cluster.kubelet.unprepare(claim).values()) == {""}
        plugin.wait_for_line("0000:01:00.0 (GA102 [GeForce RTX 3090]) is on offer as nvidia.com/GA102_GEFORCE_RTX_3090")
