"""What a pod has of the manifest word for word."""

from pathlib import Path

import pytest

from program.errors import UserError
from tests.launcher.pod.made import pod_of, text_of, written_vm

NAMES = ("n" * 63, "n" * 64)


def test_a_guests_architecture_is_its_nodes(tmp_path: Path) -> None:
    vm = written_vm(tmp_path / "vm.yaml")
    assert pod_of(vm)["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    vm = written_vm(tmp_path / "vm.yaml", spec="  nodeSelector: {kubernetes.io/arch: arm64}\n")
    with pytest.raises(
        UserError, match=r"^spec.nodeSelector.kubernetes.io/arch: 'arm64', and spec.architecture is 'amd64'"
    ):
        text_of(vm)


def test_a_guest_has_the_name_that_its_pod_has(tmp_path: Path) -> None:
    for name, hostname in (("vm", "vm"), ("vm.of.a.team", "vm"), ("n" * 62 + "-n", "n" * 62)):
        assert pod_of(written_vm(tmp_path / "vm.yaml", name=name))["spec"]["hostname"] == hostname


def test_services_of_every_virtctl_find_the_pod(tmp_path: Path) -> None:
    """A name too long for a label is left out of one, and shortened in the other as KubeVirt does it."""
    labels = {name: pod_of(written_vm(tmp_path / "vm.yaml", name=name))["metadata"]["labels"] for name in NAMES}
    assert labels == {
        "n" * 63: {"vm.kubevirt.io/name": "n" * 63, "vmi.kubevirt.io/id": "n" * 63},
        "n" * 64: {"vmi.kubevirt.io/id": "n" * 54 + "-49f71cc1"},
    }


def test_a_label_of_the_manifests_own_wins(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    path.write_text(path.read_text().replace("{name: vm}", "{name: vm, labels: {vmi.kubevirt.io/id: other}}"))
    assert pod_of(path)["metadata"]["labels"]["vmi.kubevirt.io/id"] == "other"


def test_kubectls_own_note_stays_behind(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    noted = "{name: vm, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}', a: b, c: null}}"
    path.write_text(path.read_text().replace("{name: vm}", noted))
    assert list(pod_of(path)["metadata"]["annotations"]) == ["a", "gpu-launcher.dev/memory"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("  affinity: &a {nodeAffinity: *a}\n", "spec.affinity.nodeAffinity.nodeAffinity"),
        (
            "  affinity: {nodeAffinity: {1: x}}\n",
            "spec.affinity.nodeAffinity: has the key 1, which is no text; write it in quotes",
        ),
        (
            "  tolerations: [{tolerationSeconds: .nan}]\n",
            "spec.tolerations[0].tolerationSeconds: nan is no number that",
        ),
        (
            "  dnsConfig: {options: !!binary aGVsbG8=}\n",
            "spec.dnsConfig.options: found bytes; expected text, a number, a list or",
        ),
    ],
)
def test_what_json_cannot_say_is_refused_by_its_path(tmp_path: Path, said: str, error: str) -> None:
    with pytest.raises(UserError) as refused:
        text_of(written_vm(tmp_path / "vm.yaml", spec=said))
    assert str(refused.value).startswith(error)


def test_an_annotation_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    path.write_text(path.read_text().replace("{name: vm}", "{name: vm, annotations: {a: 1}}"))
    with pytest.raises(UserError, match=r"^metadata.annotations: 'a' is 1; expected text, write it in quotes$"):
        text_of(path)
