import json

from launcher.checks.finding import Level, as_json, error, page, said, sorted_by_level, warning, worst

LOW = warning("the container's CPU limit", "is 1 CPUs", "raise it")
HIGH = error("gpu 'gpu1'", "0000:01:00.0 is bound to nvidia", "bind it to vfio-pci")


def test_a_finding_is_one_line_also_where_a_name_would_break_it() -> None:
    assert str(HIGH) == "gpu 'gpu1': 0000:01:00.0 is bound to nvidia; bind it to vfio-pci"
    assert str(error("a\nb", "c", "d")) == "a\\nb: c; d"


def test_what_a_stage_says_in_one_line_keeps_its_words() -> None:
    words = "spec.domain.cpu: the guest needs 8 CPUs, and the pod has 7; expected the pod to request 8"
    assert str(said(Level.ERROR, words)) == words
    seats = "gpus and hostDevices have 33 entries; a guest has seats for 32"
    assert str(said(Level.ERROR, seats)) == f"the manifest: {seats}"
    assert str(said(Level.ERROR, "gpu 'a' asks for x; expected y", "gpu 'a'")) == "gpu 'a': asks for x; expected y"


def test_the_worst_comes_first_and_each_once() -> None:
    assert sorted_by_level([LOW, HIGH, LOW]) == (HIGH, LOW)
    assert (worst([LOW, HIGH]), worst([LOW]), worst([])) == (Level.ERROR, Level.WARNING, Level.OK)


def test_the_page_has_each_with_what_mends_it() -> None:
    assert page((HIGH, LOW)) == (
        "Errors: 1, warnings: 1.\n"
        "\n"
        "error: gpu 'gpu1': 0000:01:00.0 is bound to nvidia\n"
        "  bind it to vfio-pci\n"
        "\n"
        "warning: the container's CPU limit: is 1 CPUs\n"
        "  raise it\n"
    )
    assert page(()) == "Errors: 0, warnings: 0.\n"


def test_the_json_has_the_same() -> None:
    assert json.loads(as_json((HIGH,))) == {
        "level": "error",
        "findings": [
            {
                "level": "error",
                "subject": "gpu 'gpu1'",
                "says": "0000:01:00.0 is bound to nvidia",
                "fix": "bind it to vfio-pci",
            }
        ],
    }
    assert json.loads(as_json(())) == {"level": "ok", "findings": []}
