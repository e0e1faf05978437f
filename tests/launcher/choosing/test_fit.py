"""Which nodes and cards could take a VM, and why the others could not."""

import json
import resource
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.choosing.claim import claim_for
from launcher.choosing.cluster import Cluster, Holder, cluster_of
from launcher.choosing.fit import Fit, as_json, as_text, fit_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import Word, read_selection
from launcher.vm.cards.claims import Entry, EntryKind, Request
from program.errors import UserError
from tests.clusters import card_and_cpus, claim_of, hgx, machine, node_of, pod_on, slices_of, snapshot_of
from tests.launcher.choosing.hami import cluster_of_cards, entries

HGX = slices_of(snapshot_of(hgx()), "hgx")
RTX = slices_of(machine("two-rtx-3090"), "rtx")
DESKTOP = slices_of(machine("rtx-2060"), "desktop")
A100, RTX_3090 = "nvidia.com/GA100_A100_SXM4_40GB", "nvidia.com/GA102_GEFORCE_RTX_3090"


def fit(
    objects: Sequence[dict[str, Any]], *wants: str | Request, claims: Sequence[NamedClaim] = (), **annotations: str
) -> Fit:
    """Of a VM with a GPU for each that it wants; annotations by what stands behind their domain."""
    gpus = tuple(Entry(kind=EntryKind.GPU, name=f"g{number}", wants=each) for number, each in enumerate(wants))
    domains = dict.fromkeys(("select", "together", "first_available", "memory_at_least"), "gpu-launcher.dev")
    given = {f"{domains.get(name, 'nvidia.com')}/{name.replace('_', '-')}": text for name, text in annotations.items()}
    cluster = cluster_of(objects)
    pod = next((asking(each) for each in objects if each.get("kind") == "Pod" and "apiVersion" in each), None)
    return fit_of("default/vm", "default", gpus, read_selection(given), claims, cluster, pod=pod)


def taken(result: Fit) -> dict[str, list[str]]:
    return {each.node: [device.id.name for device in each.devices or ()] for each in result.fitting}


def why(result: Fit, node: str) -> list[str | None]:
    """Of each card."""
    (placement,) = (each for each in result.placements if each.node == node)
    return [None if verdict.reason is None else verdict.reason.text for verdict in placement.verdicts]


def reason(result: Fit, node: str) -> str | None:
    (placement,) = (each for each in result.placements if each.node == node)
    return placement.reason


def changed(objects: Sequence[dict[str, Any]], **device: Any) -> list[dict[str, Any]]:
    """With another first device."""
    copy: list[dict[str, Any]] = json.loads(json.dumps(objects))
    copy[0]["spec"]["devices"][0].update(device)
    return copy


def test_it_names_the_first_cards_in_the_order_in_which_they_are_published() -> None:
    result = fit([*HGX, *RTX], A100, A100)
    assert taken(result) == {"hgx": ["pci-0000-07-00-0", "pci-0000-0f-00-0"]}
    assert why(result, "rtx") == [f"another model: {RTX_3090}"] * 2
    assert reason(result, "rtx") == "no card here could be gpu 'g0'"


def test_a_card_that_somebody_has_says_who() -> None:
    held = claim_of("train-gpus", [("rtx", "pci-0000-01-00-0")], "train")
    idle = claim_of("left", [("rtx", "pci-0000-e1-00-0")])
    result = fit([*RTX, held, idle], RTX_3090)
    assert why(result, "rtx") == [
        "taken by claim default/train-gpus of pod train",
        "taken by claim default/left of no pod now",
    ]


def test_what_a_card_is_comes_before_who_has_it() -> None:
    result = fit([*RTX, claim_of("c", [("rtx", "pci-0000-01-00-0")], "p")], A100)
    assert why(result, "rtx")[0] == f"another model: {RTX_3090}"


def test_an_admins_look_takes_nothing() -> None:
    look = claim_of("look", [("rtx", "pci-0000-01-00-0")], "top")
    look["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert len(taken(fit([*RTX, look], RTX_3090, RTX_3090))["rtx"]) == 2


def test_a_taint_says_what_it_is_of() -> None:
    taints = [{"key": "gpu-launcher.dev/unhealthy", "value": "is-bound-to-snd_hda_intel", "effect": "NoSchedule"}]
    result = fit(changed(RTX, taints=taints), RTX_3090)
    assert why(result, "rtx") == ["tainted: gpu-launcher.dev/unhealthy=is-bound-to-snd_hda_intel", None]
    harmless = [{"key": "example.com/seen", "effect": "None"}]
    assert why(fit(changed(RTX, taints=harmless), RTX_3090), "rtx") == [None, None]


def rule(version: str = "v1beta2", effect: str = "NoSchedule", **selector: Any) -> dict[str, Any]:
    """A DeviceTaintRule of the devices that it selects."""
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "repair"},
        "spec": {"deviceSelector": selector, "taint": {"key": "example.com/repair", "value": "fan", "effect": effect}},
    }


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        ({"device": "pci-0000-01-00-0"}, [True, False]),
        ({"device": "pci-0000-01-00-0", "pool": "hgx"}, [False, False]),
        ({"driver": "gpu-launcher.dev", "pool": "rtx"}, [True, True]),
        ({"driver": "gpu.nvidia.com"}, [False, False]),
        ({}, [True, True]),
    ],
)
def test_a_device_taint_rule_taints_what_it_selects(version: str, selector: Any, tainted: list[bool]) -> None:
    said = "tainted: example.com/repair=fan by DeviceTaintRule repair"
    assert why(fit([*RTX, rule(version, **selector)], RTX_3090), "rtx") == [said if each else None for each in tainted]
    assert why(fit([*RTX, rule(version, "None", **selector)], RTX_3090), "rtx") == [None, None]


def test_a_claim_tolerates_a_rules_taint_and_keeps_a_card_that_it_has() -> None:
    tolerant = json.loads(json.dumps(CLAIM))
    (request,) = tolerant["spec"]["devices"]["requests"]
    request["exactly"]["tolerations"] = [{"key": "example.com/repair", "value": "fan", "operator": "Equal"}]
    assert fit([*RTX, rule(effect="NoExecute"), tolerant], Request("gpus", "gpu"), claims=[NAMED]).fitting
    allocated = {**CLAIM, "status": claim_of("mine", [("rtx", "pci-0000-e1-00-0")])["status"]}
    allocated["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu"
    assert fit([*RTX, rule(), allocated], Request("gpus", "gpu"), claims=[NAMED]).fitting


def test_a_rule_that_selects_as_before_kubernetes_1_35_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match="DeviceTaintRule repair: selects devices by deviceClassName, which fit does not"
    ):
        fit([*RTX, rule("v1alpha3", deviceClassName="gpu-launcher.dev")], RTX_3090)


def test_too_few_are_counted() -> None:
    assert reason(fit(RTX, RTX_3090, RTX_3090, RTX_3090), "rtx") == "3 cards are wanted, and 2 could be had"


@pytest.mark.parametrize(
    ("place", "node", "said"),
    [
        ("node", "rtx", "not 2 of the cards that could be had share one NUMA node"),
        ("root", "rtx", "not 2 of the cards that could be had share one PCIe root"),
        ("switch", "rtx", "of no card here that could be had the PCIe switch is known"),
        ("switch", "hgx", None),
    ],
)
def test_what_is_to_be_together_and_cannot_be(place: str, node: str, said: str | None) -> None:
    because = None if said is None else f"{said} (gpu-launcher.dev/together {place!r})"
    assert reason(fit([*HGX, *RTX], "nvidia.com/gpu", "nvidia.com/gpu", together=place), node) == because


def test_cards_that_are_together_are_found_behind_those_that_are_not() -> None:
    """The first free card has lost its neighbour, so first-fit alone leads nowhere."""
    first = claim_of("one", [("hgx", "pci-0000-07-00-0")], "p")
    result = fit([*HGX, first], A100, A100, together="switch")
    assert taken(result) == {"hgx": ["pci-0000-47-00-0", "pci-0000-4e-00-0"]}


def test_a_uuid_is_one_card_of_the_cluster() -> None:
    second = RTX[0]["spec"]["devices"][1]
    uuid = second["attributes"]["uuid"]["string"]
    assert taken(fit([*HGX, *RTX], "nvidia.com/gpu", use_gpuuuid=uuid)) == {"rtx": [second["name"]]}
    others = taken(fit([*HGX, *RTX], "nvidia.com/gpu", nouse_gpuuuid=uuid))
    assert others == {"hgx": ["pci-0000-07-00-0"], "rtx": ["pci-0000-01-00-0"]}


def test_the_first_available_type_is_taken_and_all_gpus_are_of_it() -> None:
    both = json.loads(json.dumps(HGX))  # the second card is another product
    both[0]["spec"]["devices"][1]["attributes"]["productName"]["string"] = "NVIDIA H100 PCIe"
    one = fit(both, "nvidia.com/gpu", first_available="h100,a100")
    assert taken(one) == {"hgx": ["pci-0000-0f-00-0"]}
    two = fit(both, "nvidia.com/gpu", "nvidia.com/gpu", first_available="h100,a100")
    assert taken(two) == {"hgx": ["pci-0000-07-00-0", "pci-0000-47-00-0"]}
    none = fit(both, "nvidia.com/gpu", "nvidia.com/gpu", first_available="h100,l40s")
    assert reason(none, "hgx") == "2 cards are wanted, and 1 could be had"
    assert why(none, "hgx")[0] == "excluded by gpu-launcher.dev/first-available 'h100,l40s'"


def alternatives(*selectors: str, constraint: Any = None, **more: Any) -> dict[str, Any]:
    """The claim `mine`, of whose two requests each has these alternatives: `a`, `b` and so on."""
    kinds = [
        {"name": name, "deviceClassName": "gpu-launcher.dev", "selectors": [{"cel": {"expression": each}}], **more}
        for name, each in zip("abc", selectors, strict=False)
    ]
    requests = [{"name": name, "firstAvailable": kinds} for name in ("one", "two")]
    constraints = [constraint] if constraint else []
    return {**CLAIM, "spec": {"devices": {"requests": requests, "constraints": constraints}}}


ANY_CARD, NO_CARD = 'device.driver == "gpu-launcher.dev"', 'device.driver == ""'


@pytest.mark.parametrize(
    ("bound", "cards"),
    [
        (["one", "two"], ["pci-0000-47-00-0", "pci-0000-4e-00-0"]),
        (["one/b", "two/b"], ["pci-0000-47-00-0", "pci-0000-4e-00-0"]),
        (["one/a", "two/b"], ["pci-0000-07-00-0", "pci-0000-47-00-0"]),  # one/a is none: two/b is bound to itself
    ],
)
def test_a_constraint_binds_a_request_or_an_alternative(bound: list[str], cards: list[str]) -> None:
    """Of the first switch one card is free."""
    constraint = {"matchAttribute": "gpu-launcher.dev/switch", "requests": bound}
    claim = alternatives(NO_CARD, ANY_CARD, constraint=constraint)
    held = claim_of("held", [("hgx", "pci-0000-0f-00-0")])
    assert taken(fit([*HGX, held, claim], Request("gpus", "one"), claims=[NAMED])) == {"hgx": cards}


def test_a_claim_that_has_an_alternative_is_where_that_is() -> None:
    claim = alternatives(NO_CARD, ANY_CARD)
    claim["status"] = claim_of("mine", [("rtx", "pci-0000-e1-00-0"), ("rtx", "pci-0000-01-00-0")])["status"]
    for result, request in zip(claim["status"]["allocation"]["devices"]["results"], ("one/b", "two/b"), strict=True):
        result["request"] = request
    assert taken(fit([*RTX, claim], Request("gpus", "one"), claims=[NAMED])) == {
        "rtx": ["pci-0000-e1-00-0", "pci-0000-01-00-0"]
    }


def test_alternatives_of_several_devices_are_refused() -> None:
    with pytest.raises(UserError, match="request 'one' is of 2 devices; expected up to 1"):
        fit([*RTX, alternatives(ANY_CARD, ANY_CARD, count=2)], Request("gpus", "one"), claims=[NAMED])


def test_cel_is_asked_of_each_card() -> None:
    address = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:e1:00.0"'
    result = fit(RTX, "nvidia.com/gpu", select=address)
    assert taken(result) == {"rtx": ["pci-0000-e1-00-0"]}
    assert why(result, "rtx")[0] == f"excluded by gpu-launcher.dev/select {address!r}"


@pytest.mark.parametrize(
    ("expression", "is_true"),
    [
        ('device.attributes["nobody.example.com"].?x.orValue("") == ""', True),
        ('has(device.attributes["nobody.example.com"].x)', False),
        ('cel.bind(its, device.attributes["gpu-launcher.dev"], its.functions == 2 && its.vendor == "10de")', True),
        ('device.attributes["gpu-launcher.dev"].productName.lowerAscii().matches("rtx 3\\\\d90")', True),
        ("device.capacity.size() == 0 || true", True),
        ('device.capacity["gpu-launcher.dev"].memory == quantity("25769803776")', True),
        ('device.capacity["gpu-launcher.dev"].memory.isGreaterThan(quantity("24G"))', True),
        ('device.capacity["gpu-launcher.dev"].memory.isLessThan(quantity("24Gi"))', False),
        ('device.capacity["gpu-launcher.dev"].memory.compareTo(quantity("24.5Gi")) == -1', True),
        ('device.capacity["gpu-launcher.dev"].memory.sub(quantity("25Gi")).add(1).sign() == -1', True),
        ('device.capacity["gpu-launcher.dev"].memory.asInteger() == 24 * 1073741824', True),
        ('quantity("1500m").asApproximateFloat() == 1.5 && !quantity("1500m").isInteger()', True),
        ('isQuantity("-1.5Gi") && !isQuantity("40GB")', True),
        ('has(device.capacity["nobody.example.com"].x)', False),
        ('device.driver.startsWith("gpu-launcher")', True),
    ],
)
def test_cel_has_kubernetes_device(expression: str, *, is_true: bool) -> None:
    assert bool(fit(RTX, "nvidia.com/gpu", select=expression).fitting) == is_true


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("device.drive == 'x'", "undeclared reference|undefined field"),
        ("1 +", "mismatched input"),
        ("device.driver", "is of type STRING; expected a bool"),
        ('device.capacity["gpu-launcher.dev"].memory > 5', "no matching overload"),
        ('device.attributes["a"].v.isGreaterThan(semver("1.0.0"))', "undeclared reference to '(semver|isGreaterThan)'"),
    ],
)
def test_cel_that_is_none_is_refused_by_the_annotations_name(expression: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        fit(RTX, "nvidia.com/gpu", select=expression)
    assert refused.value.problem.subject.startswith("gpu-launcher.dev/select")


def test_cel_of_a_device_class_that_is_none_is_refused_by_the_classes_name() -> None:
    ours = json.loads(json.dumps(WHOLE[-1]))
    ours["spec"]["selectors"] = [{"cel": {"expression": "1 +"}}]
    with pytest.raises(UserError, match="is no CEL that fit knows") as refused:
        fit([*RTX, ours], RTX_3090)
    assert refused.value.problem.subject == "DeviceClass gpu-launcher.dev"


def test_cel_whose_texts_double_again_and_again_is_given_up() -> None:
    """It took 5.7 GiB."""
    text = "size(t27) > 0"
    for number in range(27, 0, -1):
        text = f"cel.bind(t{number}, t{number - 1} + t{number - 1}, {text})"
    result = fit(RTX, "nvidia.com/gpu", select=f"cel.bind(t0, 'sixteen letters.', {text})")
    assert result.fitting == ()
    assert "it takes more than 64 MiB of memory" in str(reason(result, "rtx"))
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_where_cel_has_no_answer_the_scheduler_gives_up_on_all_nodes() -> None:
    result = fit([*HGX, *DESKTOP], "nvidia.com/gpu", select='device.attributes["gpu-launcher.dev"].switch != ""')
    assert result.fitting == ()
    assert "the scheduler gives up on the whole pod" in str(reason(result, "desktop"))
    assert "switch" in str(reason(result, "desktop"))
    assert "hgx: the scheduler gives up before it gets here" in as_text(result)
    assert result.answer == (reason(result, "desktop"), "ask for an attribute with has(...), or .?NAME.orValue(...)")


def test_a_quantity_that_is_none_has_no_answer() -> None:
    result = fit(RTX, "nvidia.com/gpu", select='device.capacity["x"].?y.orValue(quantity("40GB")).sign() == 1')
    assert "a selector has no answer for pci-0000-01-00-0: '40GB' is not a quantity" in str(reason(result, "rtx"))


def test_at_least_so_much_memory_is_asked_of_what_the_slice_says() -> None:
    assert taken(fit([*HGX, *RTX], "nvidia.com/gpu", memory_at_least="40Gi")) == {"hgx": ["pci-0000-07-00-0"]}
    unknown = changed(RTX, capacity={})
    assert taken(fit(unknown, "nvidia.com/gpu", memory_at_least="24Gi")) == {"rtx": ["pci-0000-e1-00-0"]}
    assert why(fit(RTX, "nvidia.com/gpu", memory_at_least="25G"), "rtx") == [None, None]
    assert (
        why(fit(RTX, "nvidia.com/gpu", memory_at_least="25Gi"), "rtx")
        == ["excluded by gpu-launcher.dev/memory-at-least '25Gi': 24Gi"] * 2
    )


def test_an_expression_that_would_take_for_ever_ends() -> None:
    ten = "[0,1,2,3,4,5,6,7,8,9]"
    deep = "true"
    for letter in "abcdefghi":
        deep = f"{ten}.all({letter}, {deep})"
    assert fit(RTX, "nvidia.com/gpu", select=deep).fitting == ()


def test_half_a_pool_is_waited_for_as_the_scheduler_does() -> None:
    half = json.loads(json.dumps(RTX))
    half[0]["spec"]["pool"]["resourceSliceCount"] = 2
    said = "gpu-launcher.dev is publishing pool rtx: 1 of 2 slices of generation 1 are there"
    assert reason(fit(half, RTX_3090), "rtx") == said


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    newer = json.loads(json.dumps(RTX))
    newer[0]["metadata"]["name"] = "newer"
    newer[0]["spec"]["pool"]["generation"] = 2
    del newer[0]["spec"]["devices"][0]
    assert taken(fit([*RTX, *newer], RTX_3090)) == {"rtx": ["pci-0000-e1-00-0"]}


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "mine", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpu-launcher.dev",
                        "selectors": [
                            {"cel": {"expression": 'device.attributes["gpu-launcher.dev"].vendor == "10de"'}}
                        ],
                        "tolerations": [{"key": "gpu-launcher.dev/unhealthy", "operator": "Exists"}],
                    },
                }
            ]
        }
    },
}
NAMED = NamedClaim("gpus", "ResourceClaim", "mine")


def test_a_claim_that_the_vm_names_is_judged_with_the_rest_of_it() -> None:
    result = fit([*RTX, CLAIM], Request("gpus", "gpu"), RTX_3090, claims=[NAMED])
    assert taken(result) == {"rtx": ["pci-0000-01-00-0", "pci-0000-e1-00-0"]}
    assert [wanted.name for wanted in result.requirements.devices] == ["gpu 'g1'", "gpu 'g0'"]


def whole(cpus: int) -> dict[str, Any]:
    """The page's claim of a card and CPUs, as `mine` and with so many of them."""
    template, _ = card_and_cpus()
    spec = template["spec"]["spec"]
    spec["devices"]["requests"][1]["exactly"]["count"] = cpus
    return {**CLAIM, "spec": spec}


def beside_cpus(*attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """RTX, whose second card is on NUMA node 1, with a CPU of these attributes for each."""
    cards: list[dict[str, Any]] = json.loads(json.dumps(RTX))
    for card, node in zip(cards[0]["spec"]["devices"], (0, 1), strict=True):
        card["attributes"] |= {"resource.kubernetes.io/numaNode": {"int": node}}
    devices = [{"name": f"cpu-{number}", "attributes": each} for number, each in enumerate(attributes)]
    pool = {"name": "rtx", "generation": 1, "resourceSliceCount": 1}
    of_cpus = {**RTX[0], "metadata": {"name": "cpus"}}
    of_cpus["spec"] = {"driver": "dra.cpu", "nodeName": "rtx", "pool": pool, "devices": devices}
    expression = {"cel": {"expression": 'device.driver == "dra.cpu"'}}
    device_class = {"kind": "DeviceClass", "metadata": {"name": "dra.cpu"}, "spec": {"selectors": [expression]}}
    return [*cards, of_cpus, {"apiVersion": "resource.k8s.io/v1", **device_class}]


def test_cpus_of_another_driver_in_the_vms_claim_bring_its_card_to_their_numa_node() -> None:
    cpus = [{"resource.kubernetes.io/numaNode": {"int": node}} for node in (0, 1, 1)]
    two = fit([*beside_cpus(*cpus), whole(2)], Request("gpus", "gpu"), claims=[NAMED])
    assert taken(two) == {"rtx": ["pci-0000-e1-00-0", "cpu-1", "cpu-2"]}
    three = fit([*beside_cpus(*cpus), whole(3)], Request("gpus", "gpu"), claims=[NAMED])
    assert str(reason(three, "rtx")).startswith("not 4 of the cards that could be had share one NUMA node")


def test_a_claim_that_has_its_cpus_is_where_they_are() -> None:
    cpus = [{"resource.kubernetes.io/numaNode": {"int": node}} for node in (0, 1, 1)]
    results = [
        {"request": request, "driver": driver, "pool": "rtx", "device": device}
        for request, driver, device in (
            ("gpu", "gpu-launcher.dev", "pci-0000-e1-00-0"),
            ("cpus", "dra.cpu", "cpu-1"),
            ("cpus", "dra.cpu", "cpu-2"),
        )
    ]
    allocated = {**whole(2), "status": {"allocation": {"devices": {"results": results}}}}
    result = fit([*beside_cpus(*cpus), allocated], Request("gpus", "gpu"), claims=[NAMED])
    assert taken(result) == {"rtx": ["pci-0000-e1-00-0", "cpu-1", "cpu-2"]}


@pytest.mark.parametrize(
    ("nodes", "cards"),
    [
        ([{"ints": [2, 1]}, {"int": 1}], ["pci-0000-e1-00-0", "cpu-0", "cpu-1"]),
        ([{"ints": [0, 1]}, {"ints": [1, 2]}], ["pci-0000-e1-00-0", "cpu-0", "cpu-1"]),
        ([{"ints": [0, 2]}, {"ints": [1, 2]}], None),  # each goes with the other, and both with no card
        ([{"strings": ["1"]}, {"int": 1}], None),
    ],
)
def test_lists_share_what_all_of_them_have(nodes: list[dict[str, Any]], cards: list[str] | None) -> None:
    """KEP-5491."""
    cpus = [{"resource.kubernetes.io/numaNode": node} for node in nodes]
    result = fit([*beside_cpus(*cpus), whole(2)], Request("gpus", "gpu"), claims=[NAMED])
    assert taken(result) == ({} if cards is None else {"rtx": cards})


ATTRIBUTES = [device["attributes"] for device in RTX[0]["spec"]["devices"]]


def of_claim(objects: Sequence[dict[str, Any]], gpus: int, annotations: dict[str, str]) -> Fit:
    """What is said of a VM whose claim is there as `pod --dra` makes it, by the annotations in its pod's record."""
    selection = read_selection(annotations)
    made = claim_for(entries(gpus), selection)
    assert made is not None
    template = {**CLAIM, "kind": "ResourceClaimTemplate", "spec": {"spec": made.spec()}}
    requests = [replace(each.entry, wants=Request("gpu-launcher", each.name)) for each in made.requests]
    named = [NamedClaim("gpu-launcher", "ResourceClaimTemplate", "mine")]
    return fit_of("d/vm", "default", requests, selection, named, cluster_of([*objects, template]), dra=False)


@pytest.mark.parametrize(
    ("word", "text", "gpus"),
    [
        (Word.USE_TYPE, "H100", 1),
        (Word.AVOID_TYPE, "A100, 3090", 1),
        (Word.USE_ID, "8dcd427f-b4c5-5b2a-9f10-000000000001", 1),
        (Word.AVOID_ID, ",".join(words["uuid"]["string"] for words in ATTRIBUTES), 1),
        (Word.NUMA_BIND, "true", 2),
        (Word.MEMORY, "80Gi", 1),
        (Word.FIRST, "H100,L40S", 1),
        (Word.SELECT, 'device.attributes["gpu-launcher.dev"].vendor == "1002"', 1),
        (Word.TOGETHER, "switch", 2),
        (Word.TOGETHER, "nvlink", 2),
    ],
)
def test_a_claim_that_is_there_is_told_in_the_words_of_the_vm_that_it_was_made_for(
    word: Word, text: str, gpus: int
) -> None:
    """And what `pod --dra` prints is what is judged without it."""
    objects = changed(RTX, attributes={**ATTRIBUTES[0], "resource.kubernetes.io/numaNode": {"int": 7}})
    own = fit_of("d/vm", "default", entries(gpus), read_selection({word: text}), (), cluster_of(objects))
    claimed = of_claim(objects, gpus, {word: text})
    assert as_text(claimed) == as_text(own)
    assert own.answer is not None
    wrong, fix = own.answer
    assert f"{word} {text!r}" in wrong
    assert f"leave out {word} {text!r}" in fix
    assert "selector" not in as_text(claimed)


def test_a_word_of_ones_own_claim_is_its_line_of_cel() -> None:
    own = json.loads(json.dumps(CLAIM))
    line = 'device.attributes["gpu-launcher.dev"].vendor == "1002"'
    own["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": line}}]
    result = fit([*RTX, own], Request("gpus", "gpu"), claims=[NAMED])
    said = f"{line!r} of ResourceClaim default/mine"
    assert why(result, "rtx") == [f"excluded by {said}"] * 2
    assert result.remedies == (
        f"leave out {said} (excludes 2 cards, 2 of them free): rtx then has 1 NVIDIA GeForce RTX 3090",
    )


def test_what_would_help_is_to_wait_for_cards_or_to_leave_out_the_word_that_costs_them() -> None:
    held = claim_of("train", [("rtx", "pci-0000-01-00-0")], "train-0")
    result = fit([*RTX, *HGX, held], RTX_3090, nouse_gputype="3090,L4", numa_bind="true")
    assert result.answer == (
        (
            "no node takes it, and rtx is the nearest: no card here could be gpu 'g0' "
            "(2 excluded by nvidia.com/nouse-gputype '3090,L4')"
        ),
        (
            "leave out nvidia.com/nouse-gputype '3090,L4' (excludes 2 cards, 1 of them free): "
            "rtx then has 1 NVIDIA GeForce RTX 3090"
        ),
    )
    other = claim_of("b", [("rtx", "pci-0000-e1-00-0")], "b-0")
    waits = fit([*RTX, *HGX, held, other], RTX_3090, use_gputype="3090")
    assert waits.remedies == ("wait for 0000:01:00.0 of rtx (claim default/train of pod train-0)",)
    assert fit([*HGX, held], RTX_3090, use_gputype="3090").remedies == ()


def test_of_two_words_that_exclude_all_cards_together_both_are_to_be_left_out() -> None:
    result = fit([*RTX], "nvidia.com/gpu", nouse_gputype="3090", memory_at_least="40Gi")
    assert result.remedies == (
        (
            "leave out nvidia.com/nouse-gputype '3090' and leave out gpu-launcher.dev/memory-at-least '40Gi' "
            "(excludes 2 cards, 2 of them free): rtx then has 1 NVIDIA GeForce RTX 3090"
        ),
    )


def test_a_claim_that_has_its_card_is_where_that_is() -> None:
    allocated = {**CLAIM, "status": claim_of("mine", [("rtx", "pci-0000-e1-00-0")])["status"]}
    allocated["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu"
    result = fit([*RTX, *DESKTOP, allocated], Request("gpus", "gpu"), claims=[NAMED])
    assert taken(result) == {"rtx": ["pci-0000-e1-00-0"]}
    assert why(result, "rtx")[0] == "ResourceClaim default/mine has pci-0000-e1-00-0 of rtx already"


def test_a_template_is_as_a_claim_and_tolerates_what_it_says() -> None:
    template = {**CLAIM, "kind": "ResourceClaimTemplate", "spec": {"spec": CLAIM["spec"]}}
    taints = [{"key": "gpu-launcher.dev/unhealthy", "value": "x", "effect": "NoSchedule"}]
    named = NamedClaim("gpus", "ResourceClaimTemplate", "mine")
    assert taken(fit([*changed(RTX, taints=taints), template], Request("gpus", "gpu"), claims=[named])) == {
        "rtx": ["pci-0000-01-00-0"]
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"allocationMode": "All"}, "request 'gpu' is of another kind"),
        ({"adminAccess": True}, "request 'gpu' is of another kind"),
        ({"count": 1000}, "request 'gpu' is of 1000 devices; expected up to 32"),
        ({"deviceClassName": "other"}, "is of DeviceClass other, which is not there; get deviceclasses"),
    ],
)
def test_what_is_not_judged_is_refused(change: dict[str, Any], said: str) -> None:
    claim = json.loads(json.dumps(CLAIM))
    claim["spec"]["devices"]["requests"][0]["exactly"].update(change)
    with pytest.raises(UserError, match=said):
        fit([*RTX, claim], Request("gpus", "gpu"), claims=[NAMED])


def test_a_claim_that_is_not_there_says_what_to_get() -> None:
    with pytest.raises(UserError, match="ResourceClaim mine: is not among the slices and claims; get resourceclaims"):
        fit(RTX, Request("gpus", "gpu"), claims=[NAMED])
    with pytest.raises(UserError, match="has no request 'other', which gpu 'g0' is of; expected one of gpu"):
        fit([*RTX, CLAIM], Request("gpus", "other"), claims=[NAMED])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"apiVersion": "resource.k8s.io/v1beta1"}, "is of resource.k8s.io/v1beta1; expected resource.k8s.io/v1"),
        ({"spec": None}, "ResourceSlice rtx-gpu-launcher.dev-0: has no spec"),
        ({"metadata": {}}, "ResourceSlice: has no metadata.name"),
        ({"spec": {"driver": 1, "pool": {}}}, "has no driver, or no whole pool"),
    ],
)
def test_what_is_no_slice_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit([{**RTX[0], **change}], RTX_3090)


def test_objects_of_other_kinds_are_passed_over() -> None:
    assert fit([{"kind": "Pod"}, *RTX, {"apiVersion": "v1", "kind": "Service"}], RTX_3090).fitting


def test_text_and_json_say_the_same() -> None:
    result = fit([*HGX, *RTX], A100)
    document = json.loads(as_json(result))
    assert (document["vm"], document["fits"], document["notes"]) == ("default/vm", True, [])
    hgx_, rtx = document["nodes"]
    assert (hgx_["node"], hgx_["fits"], hgx_["reason"]) == ("hgx", True, None)
    (card,) = hgx_["takes"]
    assert (card["entry"], card["address"]) == ("gpu 'g0'", "0000:07:00.0")
    assert (rtx["fits"], rtx["takes"], len(rtx["cards"])) == (False, [], 2)
    text = as_text(result)
    assert text.startswith("default/vm fits on 1 of 2 nodes, as far as its cards are concerned.\n")
    for words in (card["address"], card["uuid"], rtx["reason"], rtx["cards"][0]["reason"]):
        assert words in text


def test_of_many_nodes_the_nearest_are_told_and_the_rest_is_counted() -> None:
    cards = {f"n{number:02}": ((f"NVIDIA A10 {number}", f"GPU-{number}", 0),) for number in range(30)}
    near = {"near": (("NVIDIA A100", "GPU-near", 0),)}
    cluster = cluster_of_cards({**cards, **near})
    result = fit_of("d/vm", None, entries(2), read_selection({"nvidia.com/use-gputype": "A100"}), (), cluster)
    lines = as_text(result).splitlines()
    assert lines[2] == "near: 2 cards are wanted, and 1 could be had"
    assert lines[-5:] == [
        "and 21 more kinds of nodes; --json has all",
        "",
        "Of the 31 cards of nodes that it does not fit on:",
        "  30  excluded by nvidia.com/use-gputype 'A100'",
        "  1   could be one, but not with the others",
    ]
    assert len(lines) < 50


CARD = st.tuples(st.sampled_from(["A10", "A100"]), st.sampled_from([0, 1, None]), st.booleans())


@settings(deadline=None)
@given(cards=st.lists(CARD, max_size=5), wanted=st.integers(1, 4), bound=st.booleans())
def test_it_takes_what_trying_everything_takes_first(
    cards: list[tuple[str, int | None, bool]], wanted: int, *, bound: bool
) -> None:
    """First-fit with backtracking, as the scheduler does, is the first of all ways in order."""
    published = {"n": tuple((f"NVIDIA {name}", f"GPU-{number}", numa) for number, (name, numa, _) in enumerate(cards))}
    cluster = cluster_of_cards(published)
    devices = cluster.nodes[0].devices
    held = {device.id: Holder("c", ()) for device, (_, _, is_taken) in zip(devices, cards, strict=True) if is_taken}
    cluster = Cluster(nodes=cluster.nodes, taken=held)
    annotations = {"nvidia.com/use-gputype": "A100", **({"nvidia.com/numa-bind": "true"} if bound else {})}
    (placement,) = fit_of("d/vm", None, entries(wanted), read_selection(annotations), (), cluster).placements
    found = None if placement.devices is None else [int(device.id.name[5:]) for device in placement.devices]
    assert found == _tried(cards, wanted, bound=bound and wanted > 1)


def _tried(cards: list[tuple[str, int | None, bool]], wanted: int, *, bound: bool) -> list[int] | None:
    free = [number for number, (name, _, is_taken) in enumerate(cards) if name == "A100" and not is_taken]
    for way in product(free, repeat=wanted):
        numas = {cards[number][1] for number in way}
        if len(set(way)) == wanted and (not bound or (len(numas) == 1 and None not in numas)):
            return list(way)
    return None


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        (
            3,
            "the cards that could be had do not go together: "
            + ", ".join(
                f"{name} (matchAttribute example.com/{name} of ResourceClaim default/mine)"
                for name in ("third", "even", "odd")
            ),
        ),
        (18, "the claim's constraints allow more combinations than are tried here"),
    ],
)
def test_a_claim_that_would_take_for_ever_to_try_is_given_up(requests: int, said: str) -> None:
    """Two cards are of one half by `even`, and two by `odd`, but never the same two."""
    names = [f"r{number}" for number in range(requests)]
    claim = json.loads(json.dumps(CLAIM))
    (request,) = claim["spec"]["devices"]["requests"]
    claim["spec"]["devices"] = {
        "requests": [{**request, "name": name} for name in names],
        "constraints": [
            *({"matchAttribute": "example.com/third", "requests": [name]} for name in names[2:]),
            *({"matchAttribute": f"example.com/{half}", "requests": names[:2]} for half in ("even", "odd")),
        ],
    }
    slices = json.loads(json.dumps(RTX))
    (device, _) = slices[0]["spec"]["devices"]
    slices[0]["spec"]["devices"] = [
        {
            "name": f"d{number}",
            "attributes": {
                **device["attributes"],
                "example.com/third": {"int": number % 3},
                "example.com/even": {"int": number // 2},
                "example.com/odd": {"int": (number + 1) // 2},
            },
        }
        for number in range(60)
    ]
    assert reason(fit([*slices, claim], Request("gpus", "r0"), claims=[NAMED]), "rtx") == said


NASTY: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", 0, -1, 2**70, 1.5, True, [], {}, [[]], [None], {"": None}, {"string": {}}, "a/b/c"]
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, part in below for each in _paths(part, (*path, key)))]


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ON_RACK = {"key": "rack", "operator": "In", "values": ["1"]}
WHOLE: list[Any] = [
    changed(
        RTX,
        taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}],
        capacity={"m": {"value": "4Gi"}},
        consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
    )[0],
    rule(driver="gpu-launcher.dev", pool="rtx", device="pci-0000-e1-00-0"),
    claim_of("held", [("rtx", "pci-0000-01-00-0")], "p"),
    {**CLAIM, "status": {"reservedFor": []}},
    node_of("rtx", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]),
    pod_on(
        "rtx",
        "held",
        {"memory": "1Gi"},
        spec={
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [_ON_RACK]}]}}},
        },
    ),
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu-launcher.dev"},
        "spec": {"selectors": [{"cel": {"expression": "true"}}]},
    },
]


@settings(deadline=None)
@given(breaks=st.lists(st.tuples(st.sampled_from(_paths(WHOLE)[1:]), NASTY), min_size=1, max_size=3))
def test_whatever_the_objects_are_there_is_an_answer_or_a_user_error(breaks: list[tuple[tuple[Any, ...], Any]]) -> None:
    objects = json.loads(json.dumps(WHOLE))
    for (*way, last), value in breaks:
        at = objects
        for key in way:
            at = (
                at[key]
                if isinstance(at, list) and isinstance(key, int) and key < len(at)
                else (at.get(key) if isinstance(at, dict) else None)
            )
        if isinstance(at, dict) or (isinstance(at, list) and isinstance(last, int) and last < len(at)):
            at[last] = value
    try:
        result = fit(
            [each for each in objects if isinstance(each, dict)], Request("gpus", "gpu"), RTX_3090, claims=[NAMED]
        )
    except UserError:
        return
    as_text(result)
    as_json(result)
