from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from launcher.vm.features.manifest import Features
from launcher.vm.features.xml import features
from launcher.vm.from_spec import guest_of
from launcher.vm.security.confidentiality import TDX
from tests.launcher.vms import a_guest, read_manifest, write_vmi

CLOCK = "    clock: {timer: {hyperv: {}}}\n"


def features_of(path: Path, domain: str) -> etree._Element:
    vmi = read_manifest(write_vmi(path / "vm.yaml", domain=domain))
    (element,) = features(vmi.spec.domain.features, guest_of(vmi))
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
    made = features_of(tmp_path, f"    features: {{hyperv: {{{said}: {{}}}}}}\n{CLOCK}")
    assert {element.tag for element in made.iterfind("hyperv/*[@state='on']")} == on


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


@pytest.mark.parametrize("parts", [{"realtime": (0, 1)}, {"confidentiality": TDX}])
def test_a_guest_in_real_time_or_under_tdx_has_no_performance_counters(parts: dict[str, Any]) -> None:
    (made,) = features(Features(), a_guest(**parts))
    pmu = made.find("pmu")
    assert pmu is not None
    assert pmu.get("state") == "off"
