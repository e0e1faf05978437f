from pathlib import Path

import pytest
from lxml import etree

from launcher.elements.features import features
from launcher.manifest.reading import read_manifest
from tests.launcher.vms import write_vmi

CLOCK = "    clock: {timer: {hyperv: {}}}\n"


def features_of(path: Path, domain: str) -> etree._Element:
    (element,) = features(read_manifest(write_vmi(path / "vm.yaml", domain=domain)))
    return element


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
    element = features_of(tmp_path, f"    features: {{hyperv: {{{said}: {{}}}}}}\n{CLOCK}")
    assert {feature.tag for feature in element.iterfind("hyperv/*[@state='on']")} == on


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


def test_a_guest_with_cpus_of_its_own_is_told(tmp_path: Path) -> None:
    hint = features_of(tmp_path, "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n").find("kvm/hint-dedicated")
    assert hint is not None
    assert hint.get("state") == "on"


def test_a_realtime_guest_has_no_performance_counters(tmp_path: Path) -> None:
    cpu = "{cores: 2, dedicatedCpuPlacement: true, realtime: {}, numa: {guestMappingPassthrough: {}}}"
    path = write_vmi(tmp_path / "vm.yaml", domain=f"    cpu: {cpu}\n")
    path.write_text(path.read_text().replace("{guest: 1Gi}", "{guest: 1Gi, hugepages: {pageSize: 2Mi}}"))
    (element,) = features(read_manifest(path))
    pmu = element.find("pmu")
    assert pmu is not None
    assert pmu.get("state") == "off"
