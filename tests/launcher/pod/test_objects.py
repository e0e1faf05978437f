"""Golden pods, and what holds for the pod of every manifest there is.

`make test ARGS=--regenerate` writes fixtures/pods anew; read them in the diff.
"""

import json
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft7Validator
from lxml import etree

from launcher.fields.quantity import parse_amount
from launcher.manifest.inputs import read_input
from launcher.pod.objects import MEMORY
from launcher.vm import paths
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.cases import VMS, Case, case, cases
from tests.launcher.pod.made import more_than_allowed, objects_of, pod_of, text_of, written_vm
from tests.launcher.vms import RTX_3090, read_manifest
from tests.openapi import CUT, KINDS
from tests.processes import FIXTURES

PODS = FIXTURES / "pods"
GOLDEN = (
    "access-credentials",
    "arm64-gpu",
    "claims-as-block-devices",
    "claims-with-file-systems",
    "cloud-init-no-cloud",
    "container-disks",
    "data-volumes",
    "dedicated-emulator-even",
    "dra",
    "efi-persistent",
    "generate-name",
    "host-disk",
    "hugepages-without-memfd",
    "instance-type",
    "kernel-boot",
    "list-of-dumps",
    "made-isos",
    "networks",
    "no-devices",
    "probes",
    "probes-of-the-agent",
    "realtime",
    "rng-and-vsock",
    "scheduling",
    "seed-001-two-gpus",
    "tpm-persistent",
    "virtiofs",
    "whole-machine",
)
CASES = cases()
SCHEMA = json.loads(CUT.read_text())
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def block_of(case: Case) -> frozenset[str]:
    return case.world().facts.block


@cache
def made(case: Case) -> dict[str, Any]:
    """The objects of a case, by kind; they are not to be changed."""
    return objects_of(case.vm, block_of(case))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_pod_is_its_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    found = text_of(case(name).vm, block_of(case(name)))
    golden = PODS / f"{name}.yaml"
    if request.config.getoption("--regenerate"):
        golden.write_text(found)
    assert golden.exists(), "missing: run make test ARGS=--regenerate, and read what it wrote"
    assert found == golden.read_text()


def test_every_golden_file_is_of_a_case() -> None:
    assert sorted(path.stem for path in PODS.iterdir()) == sorted(GOLDEN)


@every_case
def test_every_object_is_valid_to_kubernetes_schema_which_knows_no_other_fields(case: Case) -> None:
    for kind, found in made(case).items():
        if kind not in KINDS:  # CDI's
            continue
        validator = Draft7Validator({**SCHEMA, "$ref": f"#/definitions/{KINDS[kind]}"})
        assert [error.message for error in validator.iter_errors(found)] == []


def test_the_schema_would_refuse_a_misspelt_field() -> None:
    pod = pod_of(VMS / "no-devices.yaml")
    pod["spec"]["containers"][0]["volumeMount"] = []
    validator = Draft7Validator({**SCHEMA, "$ref": f"#/definitions/{KINDS['Pod']}"})
    assert [error.message for error in validator.iter_errors(pod)] == [
        "Additional properties are not allowed ('volumeMount' was unexpected)"
    ]


@every_case
def test_what_the_schema_cannot_say_holds_too(case: Case) -> None:
    """Rules of Kubernetes' pkg/apis/core/validation."""
    spec = made(case)["Pod"]["spec"]
    (container,) = spec["containers"]
    names = [volume["name"] for volume in spec["volumes"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names)
    mounts, devices = container["volumeMounts"], container.get("volumeDevices", [])
    used = [*(mount["name"] for mount in mounts), *(device["name"] for device in devices)]
    assert set(used) == set(names)
    places = [*(mount["mountPath"] for mount in mounts), *(device["devicePath"] for device in devices)]
    assert len(set(places)) == len(places)
    assert not [place for place in places if ":" in place or not place.startswith("/")]
    requests, limits = container["resources"]["requests"], container["resources"].get("limits", {})
    for name, amount in {**requests, **limits}.items():
        if "/" in name or name.startswith("hugepages-"):
            assert requests.get(name, amount) == limits[name] == amount
        elif name in requests and name in limits:
            assert parse_amount(requests[name]).whole <= parse_amount(limits[name]).whole
    claims = [claim["name"] for claim in container["resources"].get("claims", [])]
    assert len(set(claims)) == len(claims)
    assert set(claims) <= {claim["name"] for claim in spec.get("resourceClaims", [])}


@every_case
def test_nothing_is_mounted_below_what_the_guests_user_can_write(case: Case) -> None:
    """That user could put a link where the mount point was, and the next start would mount over the image's files."""
    assert more_than_allowed(made(case)["Pod"]) == []


@every_case
def test_every_path_that_the_domain_names_is_in_a_volume_of_the_pod(case: Case) -> None:
    pod = made(case)["Pod"]
    (container,) = pod["spec"]["containers"]
    mounts = [PurePosixPath(mount["mountPath"]) for mount in container["volumeMounts"]]
    devices = {device["devicePath"] for device in container.get("volumeDevices", [])}
    named = paths_of(etree.fromstring(case.xml()))
    for path in named:
        assert path in devices or any(PurePosixPath(path).is_relative_to(mount) for mount in mounts), path
    # And all that is a block device is one of the domain's disks.
    assert devices <= named


def paths_of(domain: Any) -> set[str]:
    """Files, devices and sockets that the domain names, but for the source of entropy, which every container has."""
    texts = [domain.findtext(f"os/{name}") for name in ("kernel", "initrd", "nvram")]
    texts += [table.text for table in domain.iterfind("os/acpi/table")]
    # An <interface>'s <source> names an interface of the pod's network.
    files = (element for element in domain.iter("source", "log", "listen") if element.getparent().tag != "interface")
    for element in files:
        texts += [element.get(name) for name in ("file", "dev", "path", "socket")]
    return {text for text in texts if text}


def test_paths_of_finds_each_kind_of_path() -> None:
    named = set[str]()
    for name in ("kernel-boot", "efi-persistent", "acpi-slic", "claims-as-block-devices", "serial-console-log"):
        named |= paths_of(etree.fromstring(case(name).xml()))
    assert {paths.KERNEL_BOOT + "/boot/initrd", f"{paths.NVRAM}/efi-persistent_VARS.fd", "/dev/data"} <= named
    assert any(path.endswith("/slic.bin") for path in named)
    assert any(path.endswith("/virt-serial0-log") for path in named)


@every_case
def test_every_claim_secret_and_config_map_of_the_manifest_is_in_the_pod(case: Case) -> None:
    (manifest,) = read_input(case.vm).vms
    text = yaml.safe_dump(made(case)["Pod"]["spec"])
    spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "VirtualMachine" else manifest["spec"]
    wanted = [value for key, value in leaves(spec.get("volumes")) if key in ("claimName", "secretName", "image")]
    wanted += [value for key, value in leaves(spec.get("resourceClaims")) if key != "name"]
    assert [value for value in wanted if value not in text] == []


def leaves(value: Any, key: str = "") -> list[tuple[str, str]]:
    match value:
        case None:
            return []
        case dict():
            return [leaf for name, found in value.items() for leaf in leaves(found, name)]
        case list():
            return [leaf for found in value for leaf in leaves(found, key)]
        case _:
            return [(key, value)]


@every_case
def test_run_reads_the_manifest_as_it_was_given_byte_for_byte_where_it_is_alone(case: Case, tmp_path: Path) -> None:
    found = made(case)
    (text,) = found["ConfigMap"]["data"].values()
    again = tmp_path / "vm.yaml"
    again.write_text(text)
    assert (text == case.vm.read_text()) == read_input(case.vm).alone
    assert read_manifest(again) == read_manifest(case.vm)
    volume = found["Pod"]["spec"]["volumes"][0]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (container,) = found["Pod"]["spec"]["containers"]
    mount = container["volumeMounts"][0]
    (file,) = found["ConfigMap"]["data"]
    assert (mount["name"], f"{mount['mountPath']}/{file}") == (volume["name"], container["command"][3])


@every_case
def test_the_memory_is_the_sum_of_its_parts_and_the_pod_says_so(case: Case) -> None:
    pod = made(case)["Pod"]
    lines = pod["metadata"]["annotations"][MEMORY].splitlines()
    parts, (total, *_) = lines[: (end := total_line(lines))], lines[end:]
    requested = pod["spec"]["containers"][0]["resources"]["requests"]["memory"]
    assert total == f"= {requested} requested"
    assert sum(parse_amount(part.partition(" ")[0]).whole for part in parts) == parse_amount(requested).whole


def total_line(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if line.startswith("= "))


def test_a_config_map_stays_as_its_pod_is_and_another_manifest_is_in_another_one(tmp_path: Path) -> None:
    names = []
    for comment in ("", "", "# changed\n"):
        found = objects_of(written_vm(tmp_path / "vm.yaml", spec=comment))
        name = found["ConfigMap"]["metadata"]["name"]
        assert found["ConfigMap"]["immutable"] is True
        assert found["Pod"]["spec"]["volumes"][0]["configMap"] == {"name": name}
        names.append(name)
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("gpu-launcher-vm-[0-9a-f]{10}", name) for name in names)


@pytest.mark.parametrize("flags", [[], ["--dra"]])
def test_what_nobody_else_needs_goes_with_its_owner(gpu_launcher: Command, tmp_path: Path, flags: list[str]) -> None:
    uid = "6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0"
    state = "    firmware: {bootloader: {efi: {persistent: true}}}\n"
    path = written_vm(tmp_path / "vm.yaml", domain=state, gpus=[("gpu", RTX_3090)])
    found = list(yaml.safe_load_all(gpu_launcher("pod", path, "--owner", uid, *flags).stdout))
    owned = {each["kind"]: each["metadata"].pop("ownerReferences", None) for each in found}
    reference = [{"apiVersion": "v1", "kind": "Pod", "name": "vm", "uid": uid}]
    templates = {"ResourceClaimTemplate": reference} if flags else {}
    assert owned == {"ConfigMap": reference, "PersistentVolumeClaim": None, **templates, "Pod": None}
    assert found == list(yaml.safe_load_all(gpu_launcher("pod", path, *flags).stdout))


def test_an_owner_is_one_uid_of_one_vm(gpu_launcher: Command, tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    wrong = gpu_launcher("pod", path, "--owner", "vm")
    expected = "expected what kubectl get pod NAME -o jsonpath={.metadata.uid} prints"
    assert (wrong.returncode, wrong.stderr) == (2, f"gpu-launcher: --owner vm: is no uid; {expected}\n")
    path.write_text(f"{path.read_text()}---\n{path.read_text().replace('name: vm', 'name: other')}")
    several = gpu_launcher("pod", path, "--owner", "6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0")
    assert "is of one VM's pod, and there are 2 VMs; pick one with --name" in several.stderr


@pytest.mark.parametrize(
    ("flags", "tables"),
    [
        ([], "512Mi"),
        (["--bars", "24Gi"], "96Mi"),
        (["--kernel", "6.1"], "512Mi"),
        (["--bars", "512Gi", "--kernel", "6.12"], "4Mi"),
    ],
)
def test_page_tables_are_those_of_the_cards_and_the_kernel_that_flags_tell(
    flags: list[str], tables: str, gpu_launcher: Command, tmp_path: Path
) -> None:
    path = written_vm(tmp_path / "vm.yaml", gpus=[("gpu", RTX_3090)])
    assert (
        f" {tables} page tables for the devices' BARs, in QEMU and in KVM\n" in gpu_launcher("pod", path, *flags).stdout
    )


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--bars=much", "--bars much: 'much' is not a quantity; expected a number with a suffix, like 8Gi or 500m"),
        ("--bars=1Pi", "--bars 1Pi: is more than any device has; expected 65536Gi at most"),
        ("--kernel=new", "--kernel new: is no version; expected one like 6.12"),
    ],
)
def test_other_bars_and_kernels_are_refused(flag: str, says: str, gpu_launcher: Command, tmp_path: Path) -> None:
    wrong = gpu_launcher("pod", written_vm(tmp_path / "vm.yaml"), flag)
    assert (wrong.returncode, wrong.stderr) == (2, f"gpu-launcher: {says}\n")


def test_without_a_namespace_the_objects_are_where_kubectl_is(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml")
    assert all("namespace" not in found["metadata"] for found in objects_of(path).values())
    path.write_text(path.read_text().replace("{name: vm}", "{name: vm, namespace: lab}"))
    assert [found["metadata"]["namespace"] for found in objects_of(path).values()] == ["lab", "lab"]


def test_a_manifest_that_no_config_map_holds_is_refused(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml", spec=f"# {'x' * (1 << 20)}\n")
    with pytest.raises(UserError, match="and a ConfigMap holds 1048576; put user data into a secret"):
        text_of(path)


def test_a_name_that_leaves_no_room_for_its_config_maps_is_refused(tmp_path: Path) -> None:
    path = written_vm(tmp_path / "vm.yaml", name="n" * 230)
    with pytest.raises(UserError, match=r"^metadata.name: gpu-launcher-n+\.\.\. would have 254 characters"):
        text_of(path)
    path.write_text(path.read_text().replace("n" * 230, "n" * 229))
    assert len(objects_of(path)["ConfigMap"]["metadata"]["name"]) == 253


def test_the_launcher_in_the_pod_logs_as_the_flags_say(gpu_launcher: Command) -> None:
    by_default, in_json = (
        gpu_launcher("pod", VMS / "no-devices.yaml", *flags).stdout for flags in ((), ("--log-format", "json"))
    )
    container, other = (list(yaml.safe_load_all(text))[-1]["spec"]["containers"][0] for text in (in_json, by_default))
    assert container["command"] == [*other["command"], "--log-format=json"]
