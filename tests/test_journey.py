from pathlib import Path

import pytest
from lxml import etree

from tests.conftest import Command
from tests.demo import NEXT, VARIABLE, journey


def test_from_a_nodes_sysfs_to_a_running_domain() -> None:
    said: list[str] = []
    done = journey(said.append)
    assert done.inventory.count("example.com/bochs") == 2
    assert done.env == {VARIABLE: "0000:01:00.0,0000:41:00.0"}
    assert done.nodes == ("/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/11")
    domain = etree.fromstring(done.xml)
    assert [alias.get("name") for alias in domain.iterfind("devices/hostdev/alias")] == ["ua-gpu-gpu1", "ua-gpu-gpu2"]
    assert done.hostdevs == (
        "INFO ua-gpu-gpu1: host 0000:01:00.0 -> guest 0000:01:00.0",
        "INFO companion: host 0000:01:00.1 -> guest 0000:01:00.1",
        "INFO ua-gpu-gpu2: host 0000:41:00.0 -> guest 0000:02:00.0",
        "INFO companion: host 0000:41:00.1 -> guest 0000:02:00.1",
    )
    assert done.older_hostdevs == done.hostdevs
    assert [text[4] for text in said if text.startswith("\n== ")] == list("123456")
    assert sum("\n$ " in text for text in said) == 5, "the kubelet asks by itself"


@pytest.mark.parametrize("command", [command for _, command in NEXT], ids=lambda command: command[1])
def test_what_the_demo_says_to_type_next_prints_something(
    command: tuple[str | Path, ...], gpu_plugin: Command, gpu_launcher: Command
) -> None:
    name, *arguments = command
    result = {"gpu-plugin": gpu_plugin, "gpu-launcher": gpu_launcher}[str(name)](*arguments)
    assert result.stdout, result.stderr
