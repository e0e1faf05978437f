from pathlib import Path

import pytest

from launcher.runtime.capabilities import (
    QEMUNames,
    broken_emulation,
    broken_kvm,
    names_in,
    unknown_model,
    without_passt,
)
from launcher.vm.programs import qemu_version
from tests.launcher.cases import case

#: As libvirt's virDomainCapsCPUCustom prints them, without what nobody reads.
CAPABILITIES = """
<domainCapabilities><cpu>
  <mode name="host-model" supported="yes"><model fallback="forbid">Cascadelake-Server</model></mode>
  <mode name="custom" supported="yes"><model usable="no">EPYC-Rome</model><model usable="yes">qemu64</model></mode>
</cpu></domainCapabilities>"""
NONE = "<domainCapabilities><cpu><mode name='custom' supported='no'/></cpu></domainCapabilities>"


def names(model: str | None) -> QEMUNames:
    return QEMUNames("x86_64", "q35", "kvm", model)


def test_a_domain_names_a_machine_and_a_model_unless_that_is_the_hosts() -> None:
    text = "<domain type='{}'><os><type arch='x86_64' machine='q35'>hvm</type></os><cpu mode='{}'>{}</cpu></domain>"
    assert names_in(text.format("kvm", "host-model", "")) == names(None)
    assert names_in(text.format("qemu", "custom", "<model>EPYC</model>")) == QEMUNames("x86_64", "q35", "qemu", "EPYC")


def test_a_domain_names_what_it_has_of_hyper_v_and_the_first_card_that_passt_connects() -> None:
    of_windows, of_none = (names_in(case(name).golden.read_text()) for name in ("hyperv", "rtx-2060"))
    assert (of_windows.hyperv[:3], of_windows.by_passt) == (("hv-relaxed", "hv-vapic", "hv-vpindex"), "ua-default")
    assert (of_none.hyperv, of_none.by_passt) == ((), None)
    assert str(without_passt(of_windows)).startswith(
        "interface 'default': is passt's, and the libvirt here is built without it, as Debian 12's; use gpu-launcher's"
    )


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("EPYC-Roma", "did you mean EPYC-Rome?"),
        ("Cascadelake-Server", "expected host-model, host-passthrough, or one of virsh domcapabilities"),
    ],
)
def test_a_model_that_is_not_listed_is_unknown(model: str, fix: str) -> None:
    assert str(unknown_model(names(model), CAPABILITIES)) == (
        f"spec.domain.cpu.model: {model} is no CPU model that libvirt and QEMU know here; {fix}"
    )


def test_the_hosts_model_one_that_is_listed_and_any_where_none_are_listed_are_known() -> None:
    for model in (None, "EPYC-Rome", "max"):
        assert unknown_model(names(model), CAPABILITIES) is None
    assert unknown_model(names("EPYC-Roma"), NONE) is None


def test_a_kvm_that_ends_qemu_does_not_work(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text(
        "#!/bin/sh\nread quit; echo \"$@\" > $0.called; echo 'qemu: warning: odd' >&2; [ $quit = quit ] || exit 2\n"
        "case \"$*\" in *'-cpu host') echo 'qemu: error: failed to set MSR 0x10a' >&2; exit 1; esac\n"
    )
    program.chmod(0o755)
    assert broken_kvm(str(program), names("qemu64")) is None
    assert str(broken_kvm(str(program), names(None))) == (
        "/dev/kvm: does not work: QEMU says qemu: error: failed to set MSR 0x10a; see the node's kernel log, write "
        "another spec.domain.cpu.model, or run it with --emulation"
    )
    assert "-S " in (called := Path(f"{program}.called").read_text())
    assert called.endswith(" -machine q35,accel=kvm -cpu host\n")
    assert broken_kvm(str(tmp_path / "none"), names(None)) is None


VP_INDEX = "kernel doesn't allow setting HyperV VP_INDEX"


def test_what_qemus_own_cpu_has_not_of_hyper_v_is_said_with_what_helps(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text(f'#!/bin/sh\necho "$@" > $0.called\necho "qemu: {VP_INDEX}" >&2\nexit 1\n')
    program.chmod(0o755)
    emulated = QEMUNames("x86_64", "q35", "qemu", "max", ("hv-relaxed", "hv-vpindex"))
    assert str(broken_emulation(str(program), emulated)) == (
        f"spec.domain.features.hyperv: QEMU's own CPU cannot have them: QEMU says qemu: {VP_INDEX}; run it with KVM, "
        "or leave out vpindex, synic, synictimer, tlbflush and ipi"
    )
    assert Path(f"{program}.called").read_text().endswith(" -machine q35,accel=tcg -cpu max,hv-relaxed,hv-vpindex\n")
    assert broken_emulation(str(program), emulated._replace(hyperv=())) is None


def test_a_real_qemu_says_it_as_well_as_long_as_it_has_no_vpindex() -> None:
    program = "qemu-system-x86_64"
    if (version := qemu_version(program)) is None:
        pytest.skip("no QEMU here")
    assert broken_emulation(program, QEMUNames("x86_64", "q35", "qemu", "max", ("hv-relaxed", "hv-vapic"))) is None
    found = broken_emulation(program, QEMUNames("x86_64", "q35", "qemu", "max", ("hv-vpindex",)))
    assert (found is None) == (version > (8,))
    assert found is None or VP_INDEX in str(found)
