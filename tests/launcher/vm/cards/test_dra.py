"""DRA's metadata files in a directory, and what is said of those that do not name one device."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from launcher.vm.cards.claims import DeviceID, Entry, EntryKind, Request
from launcher.vm.cards.dra import read_allocated
from launcher.vm.cards.manifest import ResourceClaim
from pci.address import PCIAddress
from program.errors import UserError

BY_NAME = ResourceClaim(name="gpus", resourceClaimName="team-gpus")
BY_TEMPLATE = ResourceClaim(name="gpus", resourceClaimTemplateName="gpu-template")
VERSION = "metadata.resource.k8s.io/v1beta1"
EXPECTED = f"{VERSION} or metadata.resource.k8s.io/v1alpha1"
PCI = {"resource.kubernetes.io/pciBusID": {"string": "0000:41:00.0"}}
MDEV = {"mdevUUID": {"string": "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"}}
FILE = "resourceclaims/team-gpus/gpu/gpu.example.com-metadata.json"


def document(*attributes: object, request: str = "gpu", version: str = VERSION) -> str:
    devices = [
        {"driver": "gpu.example.com", "pool": "node", "name": "gpu-0", "attributes": each} for each in attributes
    ]
    return json.dumps(
        {
            "apiVersion": version,
            "kind": "DeviceMetadata",
            "metadata": {"name": "team-gpus"},
            "requests": [{"name": request, "devices": devices}],
        }
    )


def write(directory: Path, text: str, path: str = FILE) -> None:
    file = directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def device(directory: Path, claim: ResourceClaim = BY_NAME) -> DeviceID:
    request = Request("gpus", "gpu")
    entry = Entry(kind=EntryKind.GPU, name="gpu1", wants=request)
    return read_allocated([entry], (claim,), directory)[request]


def problem(directory: Path) -> str:
    with pytest.raises(UserError) as error:
        device(directory)
    prefix = f"gpu 'gpu1': is request 'gpu' of claim 'gpus', but {directory}/resourceclaims/team-gpus/gpu"
    assert str(error.value).startswith(prefix)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(prefix).removeprefix("/gpu.example.com-metadata.json")


def test_a_claim_is_found_by_its_own_name_or_where_it_is_from_a_template_by_the_pods(tmp_path: Path) -> None:
    write(tmp_path, document(PCI))
    write(tmp_path, document(MDEV), "resourceclaimtemplates/gpus/gpu/x-metadata.json")
    assert device(tmp_path) == PCIAddress.parse("0000:41:00.0")
    assert device(tmp_path, BY_TEMPLATE) == UUID("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")


def test_a_request_of_alternatives_is_found_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, document(PCI, request="gpu/first"))
    assert device(tmp_path) == PCIAddress.parse("0000:41:00.0")


def test_a_device_with_a_uuid_and_an_address_is_a_mediated_device_of_that_parent(tmp_path: Path) -> None:
    write(tmp_path, document({**PCI, **MDEV}))
    assert isinstance(device(tmp_path), UUID)
    write(tmp_path, document({**PCI, "mdevUUID": {"string": ""}}))
    assert isinstance(device(tmp_path), PCIAddress)


def test_versions_that_are_not_known_are_skipped(tmp_path: Path) -> None:
    newer = json.dumps({"apiVersion": "metadata.resource.k8s.io/v2", "requests": "of another form"})
    write(tmp_path, f"{newer}\n{document(PCI)}{document(MDEV)}")
    assert device(tmp_path) == PCIAddress.parse("0000:41:00.0")


def test_a_driver_for_kubernetes_1_36_alone_is_understood(tmp_path: Path) -> None:
    write(tmp_path, document(PCI, version="metadata.resource.k8s.io/v1alpha1"))
    assert device(tmp_path) == PCIAddress.parse("0000:41:00.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", f": is of no version; expected a document of {EXPECTED}"),
        (
            document(PCI, version="metadata.resource.k8s.io/v2"),
            f": is of metadata.resource.k8s.io/v2; expected a document of {EXPECTED}",
        ),
        ("{}", f": has a document without apiVersion; expected apiVersion: {EXPECTED}"),
        ("[1]", f": has a document without apiVersion; expected apiVersion: {EXPECTED}"),
        ('{"apiVersion": ', ": is not JSON: Expecting value: line 1 column"),
        ("[" * 100_000, ": is not JSON: maximum recursion depth exceeded"),
        (document(PCI, request="other"), ": has the requests other; expected gpu"),
        (f'{{"apiVersion": "{VERSION}"}}', ": has no requests; expected gpu"),
        (
            f'{{"apiVersion": "{VERSION}", "requests": {{"gpu": 1}}}}',
            ": requests is no list of objects; expected DRA's device metadata",
        ),
        (document(), ": has 0 devices; expected one: a request of count 1 for each entry"),
        (document(PCI, PCI), ": has 2 devices; expected one: a request of count 1 for each entry"),
        (
            document({"resource.kubernetes.io/pciBusID": {"strings": ["0000:41:00.0"]}}),
            ": its device has neither resource.kubernetes.io/pciBusID nor mdevUUID; expected one of them, as a string",
        ),
        (
            document(["0000:41:00.0"]),
            ": its device has neither resource.kubernetes.io/pciBusID nor mdevUUID; expected one of them, as a string",
        ),
        (
            document({"resource.kubernetes.io/pciBusID": {"string": "41:00.0"}}),
            ": resource.kubernetes.io/pciBusID: '41:00.0' is not a PCI address; expected domain:bus:slot.function",
        ),
        (document({"mdevUUID": {"string": "vgpu-1"}}), ": mdevUUID: 'vgpu-1' is not a UUID"),
    ],
    ids=range(15),
)
def test_a_file_that_does_not_name_one_device_is_refused_by_path(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path, text)
    assert problem(tmp_path).startswith(expected)


def test_a_file_that_is_not_there_is_refused_with_what_would_write_it(tmp_path: Path) -> None:
    assert problem(tmp_path) == (
        ": No such file or directory; expected a file *-metadata.json there, "
        "which DRA drivers write that publish device metadata (KEP-5304)"
    )
    write(tmp_path, "", "resourceclaims/team-gpus/gpu/README")
    assert problem(tmp_path) == ": has no file; expected one file *-metadata.json: a request of one driver"


def test_a_request_of_two_drivers_is_refused_by_both(tmp_path: Path) -> None:
    write(tmp_path, document(PCI))
    write(tmp_path, document(PCI), "resourceclaims/team-gpus/gpu/a-metadata.json")
    assert problem(tmp_path) == (
        ": has a-metadata.json, gpu.example.com-metadata.json; expected one file *-metadata.json: "
        "a request of one driver"
    )


def test_bytes_that_are_no_text_are_no_json(tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    assert problem(tmp_path).startswith(": is not JSON: 'utf-8' codec can't decode")


def test_entries_of_device_plugins_need_no_directory() -> None:
    entry = Entry(kind=EntryKind.GPU, name="gpu1", wants="nvidia.com/pgpu")
    assert read_allocated([entry], (), None) == {}
