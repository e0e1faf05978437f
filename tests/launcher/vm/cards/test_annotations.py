"""Annotations that choose cards, read as HAMi reads them."""

import pytest

from launcher.vm.cards.annotations import Selection, Word, read_selection
from program.errors import Nonsense

CARD = "GPU-8dcd427f-b4c5-4b2a-9f10-000000000001"


WHOLE = "expected a whole UUID in lower case: GPU-... as of `nvidia-smi -L`, or that of `gpu-launcher fit`"


def selection(**annotations: object) -> Selection:
    """Of HAMi's words without their domain, and ours."""
    names = {name.partition("/")[2].replace("-", "_"): name for name in Word}
    return read_selection({names[word]: value for word, value in annotations.items()})


def test_a_vm_without_such_annotations_wants_any_card() -> None:
    assert read_selection({"example.com/other": 3}) == Selection()
    assert Selection().written == ()


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("A100", ("A100",)),
        ("A100,H100", ("A100", "H100")),
        (" a100 , H100,", ("a100", "H100")),
        (",", ()),  # what is not blank asks for something, and here for nothing there is
        ("", None),
        ("  ", None),
        (None, None),
    ],
)
def test_items_stand_between_commas(text: str | None, items: tuple[str, ...] | None) -> None:
    assert selection(use_gputype=text).use_types == items
    assert selection(nouse_gputype=text).avoid_types == (items or ())


def test_ids_stand_between_commas_too() -> None:
    text = f" {CARD}, {CARD.removeprefix('GPU-')},"
    assert selection(use_gpuuuid=text).use_ids == (CARD, CARD.removeprefix("GPU-"))
    assert selection(nouse_gpuuuid=text).avoid_ids == (CARD, CARD.removeprefix("GPU-"))
    assert selection(use_gpuuuid=",").use_ids == ()


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_numa_bind_is_true_where_go_says_so(text: str) -> None:
    assert selection(numa_bind=text).numa_bind


@pytest.mark.parametrize("text", ["yes", "on", "tRUE", "0", "false", " true", "", None])
def test_and_all_else_is_no_wish(text: str | None) -> None:
    assert selection(numa_bind=text) == Selection()


def test_what_asks_for_something_is_given_as_it_was_written() -> None:
    chosen = selection(use_gputype=" A100,", nouse_gpuuuid=" ,", numa_bind="no", together="switch")
    assert chosen.written == (("nvidia.com/use-gputype", " A100,"), ("gpu-launcher.dev/together", "switch"))


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"use_gputype": 100}, "nvidia.com/use-gputype: found 100; expected text, in quotes"),
        ({"numa_bind": True}, "nvidia.com/numa-bind: found True; expected text, in quotes"),
        ({"use_gpuuuid": "a\x1bb"}, r"nvidia.com/use-gpuuuid: found 'a\x1bb'; expected text, in quotes"),
        ({"use_gpuuuid": CARD[:-1]}, f"nvidia.com/use-gpuuuid: {CARD[:-1]!r} is no card's UUID; {WHOLE}"),
        ({"nouse_gpuuuid": CARD.lower()}, f"nvidia.com/nouse-gpuuuid: {CARD.lower()!r} is no card's UUID; {WHOLE}"),
        (
            {"nouse_gpuuuid": f"MIG-{CARD[4:]}"},
            f"nvidia.com/nouse-gpuuuid: 'MIG-{CARD[4:]}' is a part of a GPU; a VM has whole GPUs: name one",
        ),
        (
            {"use_gputype": "A100,A30-MIG-1g.6gb"},
            "nvidia.com/use-gputype: 'A30-MIG-1g.6gb' is a part of a GPU, or a shared one; a VM has whole GPUs",
        ),
        (
            {"nouse_gputype": "NVIDIA-L4-SHARED"},
            "nvidia.com/nouse-gputype: 'NVIDIA-L4-SHARED' is a part of a GPU, or a shared one; a VM has whole GPUs",
        ),
        *(
            (
                {"use_gputype": written},
                f"nvidia.com/use-gputype: {written!r} is a part of a GPU, or a shared one; a VM has whole GPUs",
            )
            for written in ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "1g.10gb", "a30-mig-1g.6gb")
        ),
        *(
            (
                {"nouse_gputype": written},
                (
                    f"nvidia.com/nouse-gputype: {written!r} has {wrong!r}, which no model's name has; expected parts "
                    "of names between commas, as 'A100-SXM4,H100'"
                ),
            )
            for written, wrong in (("A100;H100", ";"), ("A100|H100", "|"), ("A100*", "*"), ("RTX_3090", "_"))
        ),
        (
            {"first_available": "H100;A100"},
            (
                "gpu-launcher.dev/first-available: 'H100;A100' has ';', which no model's name has; expected parts of "
                "names between commas, as 'A100-SXM4,H100'"
            ),
        ),
        (
            {"use_gpuuuid": f"{CARD};{CARD}"},
            f"nvidia.com/use-gpuuuid: {f'{CARD};{CARD}'!r:.60} is no card's UUID; {WHOLE}",
        ),
        (
            {"memory_at_least": "40960"},
            "gpu-launcher.dev/memory-at-least: '40960' is less than 1Mi; expected a quantity, like 40960Mi",
        ),
        (
            {"memory_at_least": "40m"},
            "gpu-launcher.dev/memory-at-least: '40m' is less than 1Mi; expected a quantity, like 40Gi",
        ),
        (
            {"memory_at_least": "0"},
            "gpu-launcher.dev/memory-at-least: '0' is less than 1Mi; expected a quantity, like 40Gi",
        ),
        ({"together": "rack"}, "gpu-launcher.dev/together: 'rack'; expected 'node' or 'root' or 'switch' or 'nvlink'"),
        (
            {"nvidia_driver": "580"},
            "gpu-launcher.dev/nvidia-driver: '580'; expected the whole version, like '580.126.09'",
        ),
        (
            {"memory_at_least": "40GB"},
            "gpu-launcher.dev/memory-at-least: '40GB' is not a quantity; expected a quantity, like 40Gi",
        ),
        (
            {"first_available": ","},
            (
                "gpu-launcher.dev/first-available: has 0 types; expected 1 to 8, as 'H100,A100', which is all that "
                "Kubernetes takes"
            ),
        ),
        (
            {"select": "x" * 10241},
            "gpu-launcher.dev/select: has 10241 bytes; expected at most 10240, which is all that Kubernetes takes",
        ),
    ],
)
def test_what_can_be_none_of_them_is_refused(annotations: dict[str, object], said: str) -> None:
    with pytest.raises(Nonsense) as refused:
        selection(**annotations)
    assert str(refused.value) == said
