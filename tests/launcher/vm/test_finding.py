import json

from launcher.vm.checks import as_json, error, page, warning

LOW = warning("the container's CPU limit", "is 1 CPUs", "raise it")
HIGH = error("gpu 'gpu1'", "0000:01:00.0 is bound to nvidia", "bind it to vfio-pci")


def test_the_page_has_each_with_its_fix() -> None:
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
                "severity": "error",
                "subject": "gpu 'gpu1'",
                "wrong": "0000:01:00.0 is bound to nvidia",
                "fix": "bind it to vfio-pci",
            }
        ],
    }
    assert json.loads(as_json(())) == {"level": "ok", "findings": []}
