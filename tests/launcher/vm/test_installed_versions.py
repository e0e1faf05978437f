from pathlib import Path

from launcher.vm.programs import machines_of, qemu_version, versions
from launcher.vm.versions import NEWER, NEWER_FOR_QEMU

IGB = [newer for newer in (*NEWER, *NEWER_FOR_QEMU) if "igb" in newer.element]


def test_an_element_is_said_of_each_program_that_is_too_old_for_it() -> None:
    assert list(versions(IGB, (9, 3, 0), (8, 0, 0))) == list(versions(IGB, None, None)) == []
    libvirt, qemu = versions(IGB, (9, 0, 0), (7, 2, 22))
    assert str(libvirt) == (
        "devices.interfaces.model: <model type='igb'> needs libvirt 9.3.0, and this is 9.0.0; "
        "take a newer libvirt, or leave out what asks for it"
    )
    assert "needs QEMU 8.0.0, and this is 7.2.22" in qemu.problem.wrong


def test_qemu_says_its_version_itself(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\necho 'QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)'\n")
    program.chmod(0o755)
    assert qemu_version(str(program)) == (10, 0, 2)
    assert qemu_version(str(tmp_path / "none")) is None
    program.write_text("#!/bin/sh\necho something else\n")
    assert qemu_version(str(program)) is None


def test_qemu_lists_its_machines_itself(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\n[ $2 = help ] && printf 'Supported machines are:\\npc-q35-7.2    Standard PC\\n'\n")
    program.chmod(0o755)
    found = machines_of(str(program))
    assert found is not None
    assert "pc-q35-7.2" in found
    assert machines_of(str(tmp_path / "none")) is None
