"""gpu-plugin's image, as `make image` has just written it: run as a container, and looked into."""

import json
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.image.container import Container
from tests.processes import FIXTURES


@pytest.mark.parametrize("machine", ["two-rtx-3090", "hgx-a100-8-gpu"])
def test_inventory_says_in_the_image_what_it_says_in_the_checkout(
    plugin_container: Container, gpu_plugin: Command, machine: str
) -> None:
    def arguments(fixtures: Path) -> tuple[str | Path, ...]:
        return ("inventory", "--json", "--sysfs", fixtures / "sysfs" / machine, "--pci-ids", fixtures / "pci.ids")

    found = json.loads(plugin_container.run("gpu-plugin", *arguments(Path("/fixtures"))))
    expected = json.loads(gpu_plugin(*arguments(FIXTURES)).stdout)
    assert found["devices"] == expected["devices"]


def test_names_come_from_debians_pci_ids_by_itself(plugin_container: Container) -> None:
    said = plugin_container.run("gpu-plugin", "inventory", "--sysfs", "/fixtures/sysfs/two-rtx-3090")
    assert "nvidia.com/GA102_GEFORCE_RTX_3090" in said
    assert "Names from /usr/share/misc/pci.ids of 20" in said


@pytest.mark.parametrize("command", ["serve", "bind", "doctor", "config", "record"])
def test_every_command_starts(plugin_container: Container, command: str) -> None:
    assert f"gpu-plugin {command} [OPTIONS]" in plugin_container.run("gpu-plugin", command, "--help")
