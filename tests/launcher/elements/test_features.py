from pathlib import Path

import pytest
from lxml import etree

from launcher.domain import domain_xml
from launcher.facts import Facts
from launcher.manifest.reading import read_manifest
from tests.launcher.vms import write_vmi

CLOCK = "    clock: {timer: {hyperv: {}}}\n"


def features_of(path: Path, domain: str) -> etree._Element:
    root = etree.fromstring(domain_xml(read_manifest(write_vmi(path / "vm.yaml", domain=domain)), (), Facts()))
    features = root.find("features")
    assert features is not None
    return features


@pytest.mark.parametrize(
    ("said", "on"),
    [
        ("evmcs", {"evmcs", "vapic"}),
        ("ipi", {"ipi", "vpindex"}),
        ("tlbflush", {"tlbflush", "vpindex"}),
        ("synic", {"synic", "vpindex"}),
        ("synictimer", {"stimer", "synic", "vpindex"}),
        ("reset", {"reset"}),
    ],
)
def test_a_hyperv_feature_brings_what_it_needs(tmp_path: Path, said: str, on: set[str]) -> None:
    features = features_of(tmp_path, f"    features: {{hyperv: {{{said}: {{}}}}}}\n{CLOCK}")
    assert {element.tag for element in features.iterfind("hyperv/*[@state='on']")} == on


@pytest.mark.parametrize("nothing", ["hyperv: {}", "hypervPassthrough: {enabled: false}", "hyperv: {evmcs: null}"])
def test_no_hyperv_feature_is_no_hyperv(tmp_path: Path, nothing: str) -> None:
    assert features_of(tmp_path, f"    features: {{{nothing}}}\n").find("hyperv") is None


def test_a_disabled_feature_needs_nothing(tmp_path: Path) -> None:
    said = "{ipi: {enabled: false}, synictimer: {enabled: false, direct: {}}}"
    hyperv = features_of(tmp_path, f"    features: {{hyperv: {said}}}\n").find("hyperv")
    assert hyperv is not None
    assert [(element.tag, element.get("state"), len(element)) for element in hyperv] == [
        ("stimer", "off", 0),
        ("ipi", "off", 0),
    ]
