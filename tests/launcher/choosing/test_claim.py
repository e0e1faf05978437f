"""The ResourceClaim of a VM."""

import pytest

from launcher.choosing.claim import VMClaim, claim_for
from launcher.vm.cards.annotations import Selection, Word, read_selection
from launcher.vm.cards.claims import Entry, EntryKind, Request
from program.errors import UserError

OURS = 'device.attributes["gpu-launcher.dev"]'
CALLED = " || ".join(
    f'has({OURS}.{name}) && {OURS}.{name}.upperAscii().replace("-", " ").contains(word)'
    for name in ("productName", "nvmlName")
)
NAMELESS = (
    f"!has({OURS}.nvmlName) && has({OURS}.productName) && has({OURS}.device) && "
    f"{OURS}.productName.endsWith({OURS}.device)"
)
OWN = "8dcd427f-b4c5-5b2a-9f10-000000000001"
NVMLS = "GPU-8dcd427f-b4c5-4b2a-9f10-000000000001"


def gpu(name: str, wants: str | Request = "nvidia.com/GA102_GEFORCE_RTX_3090") -> Entry:
    return Entry(kind=EntryKind.GPU, name=name, wants=wants)


def nic(name: str) -> Entry:
    return Entry(kind=EntryKind.HOST_DEVICE, name=name, wants="example.com/nic")


def expressions(made: VMClaim) -> list[list[str]]:
    return [[selector.expression for selector in request.selectors] for request in made.requests]


def chosen(text: dict[str, str], *entries: Entry) -> VMClaim:
    made = claim_for(entries or (gpu("a"), gpu("b")), read_selection(text))
    assert made is not None
    return made


def test_an_entry_is_a_request_for_its_resource() -> None:
    assert chosen({}, gpu("a")).spec() == {
        "devices": {
            "requests": [
                {
                    "name": "gpu-0",
                    "exactly": {
                        "deviceClassName": "gpu-launcher.dev",
                        "selectors": [
                            {
                                "cel": {
                                    "expression": f'{OURS}.?resource.orValue("") == "nvidia.com/GA102_GEFORCE_RTX_3090"'
                                }
                            }
                        ],
                    },
                }
            ]
        }
    }


def test_entries_of_a_claim_are_left_to_it() -> None:
    assert claim_for([gpu("a", Request("mine", "gpu"))], Selection()) is None
    made = chosen({}, gpu("a", Request("mine", "gpu")), gpu("b"), nic("n"))
    assert [(request.name, request.entry.name) for request in made.requests] == [("gpu-1", "b"), ("hostdevice-0", "n")]


def test_any_gpu_of_a_vendor_is_asked_for_by_hamis_resource() -> None:
    ((expression,),) = expressions(chosen({}, gpu("a", "nvidia.com/gpu")))
    assert f'{OURS}.?vendor.orValue("") == "10de"' in expression
    assert f'{OURS}.?resource.orValue("") == "nvidia.com/gpu"' in expression


def test_hamis_words_are_for_gpus_and_not_for_host_devices() -> None:
    first, second = expressions(chosen({"nvidia.com/use-gputype": "a100,h 100"}, gpu("a"), nic("n")))
    assert first[1:] == [f'["A100", "H 100"].exists(word, {CALLED})']
    assert len(second) == 1


def test_each_annotation_is_a_selector_of_its_own() -> None:
    texts = {
        "nvidia.com/nouse-gputype": "A10",
        "nvidia.com/use-gpuuuid": f"{NVMLS},{OWN}",
        "nvidia.com/nouse-gpuuuid": OWN,
        "gpu-launcher.dev/memory-at-least": "40Gi",
        "gpu-launcher.dev/select": ' device.driver != ""\n',
    }
    ((_, *others),) = expressions(chosen(texts, gpu("a")))
    assert others == [
        f'!(["A10"].exists(word, {CALLED})) && !({NAMELESS})',
        f'{OURS}.?nvmlUUID.orValue("") in ["{NVMLS}", "GPU-{OWN}"] || {OURS}.?uuid.orValue("") in ["{OWN}"]',
        f'!({OURS}.?nvmlUUID.orValue("") in ["GPU-{OWN}"] || {OURS}.?uuid.orValue("") in ["{OWN}"])',
        (
            'has(device.capacity["gpu-launcher.dev"].memory) && '
            'device.capacity["gpu-launcher.dev"].memory.compareTo(quantity("40Gi")) >= 0'
        ),
        'device.driver != ""',
    ]


def test_first_available_is_an_alternative_for_each_type_and_all_gpus_are_of_one_product() -> None:
    made = chosen({"gpu-launcher.dev/first-available": "H100, A100"}, gpu("a"), gpu("b"), nic("n")).spec()["devices"]
    first, _, other = made["requests"]
    assert [each["name"] for each in first["firstAvailable"]] == ["first", "second"]
    assert [each["selectors"][-1]["cel"]["expression"] for each in first["firstAvailable"]] == [
        f'["{word}"].exists(word, {CALLED})' for word in ("H100", "A100")
    ]
    assert {each["deviceClassName"] for each in first["firstAvailable"]} == {"gpu-launcher.dev"}
    assert other.keys() == {"name", "exactly"}
    assert made["constraints"] == [{"matchAttribute": "gpu-launcher.dev/productName", "requests": ["gpu-0", "gpu-1"]}]


def test_what_is_quoted_stays_text_of_the_expression() -> None:
    text = 'a"] || true || "" in ["\\'
    made = claim_for([gpu("a")], Selection(use_types=(text,), written=((Word.USE_TYPE, text),)))
    assert made is not None
    ((_, expression),) = expressions(made)
    assert expression.startswith(r'["A\"] || TRUE || \"\" IN [\"\\"].exists(')


@pytest.mark.parametrize(
    ("texts", "constraints"),
    [
        ({"nvidia.com/numa-bind": "true"}, [("resource.kubernetes.io/numaNode", ["gpu-0", "gpu-1"])]),
        ({"gpu-launcher.dev/together": "node"}, [("resource.kubernetes.io/numaNode", None)]),
        ({"gpu-launcher.dev/together": "root"}, [("resource.kubernetes.io/pcieRoot", None)]),
        ({"gpu-launcher.dev/together": "switch"}, [("gpu-launcher.dev/switch", None)]),
        (
            {"nvidia.com/numa-bind": "1", "gpu-launcher.dev/together": "switch"},
            [("resource.kubernetes.io/numaNode", ["gpu-0", "gpu-1"]), ("gpu-launcher.dev/switch", None)],
        ),
    ],
)
def test_numa_bind_is_about_gpus_and_together_about_all(
    texts: dict[str, str], constraints: list[tuple[str, list[str] | None]]
) -> None:
    spec = chosen(texts, gpu("a"), gpu("b"), nic("n")).spec()
    found = [(each["matchAttribute"], each.get("requests")) for each in spec["devices"]["constraints"]]
    assert found == constraints


def test_one_card_is_with_itself_wherever_it_is() -> None:
    texts = {"nvidia.com/numa-bind": "true", "gpu-launcher.dev/together": "switch"}
    assert "constraints" not in chosen(texts, gpu("a")).spec()["devices"]


def test_what_kubernetes_would_not_take_is_refused() -> None:
    with pytest.raises(UserError, match="has 33 entries by deviceName, and a ResourceClaim holds 32 requests"):
        chosen({}, *(gpu(f"g{number}") for number in range(33)))
    with pytest.raises(UserError, match=r"becomes a selector of 120\d\d bytes, and Kubernetes takes 10240"):
        chosen({"nvidia.com/use-gpuuuid": ",".join([NVMLS] * 272)}, gpu("a"))
