"""The root of libvirt's embedded driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runtime.embedded import DEFAULT_URI, asked_for, is_taken, prepared, qemu_conf, root_of
from program.errors import Refusal, UserError
from tests.processes import ROOT
from tests.waiting import until


def test_the_root_is_in_the_uri_of_an_embedded_driver_alone() -> None:
    assert root_of("qemu:///embed?root=/run/gpu-launcher") == Path("/run/gpu-launcher")
    assert root_of("qemu:///system") is None


@pytest.mark.parametrize("query", ["", "?root=", "?root=here", "?root=/a&root=/b", "?root=/a%00"])
def test_a_root_that_is_none_is_refused(query: str) -> None:
    with pytest.raises(UserError, match="its root is no absolute path; expected one, like qemu:///embed"):
        root_of(f"qemu:///embed{query}")


def test_the_uri_that_run_is_asked_for_is_known_before_its_arguments_are_checked() -> None:
    assert asked_for(["--vm", "vm.yaml"]) == DEFAULT_URI
    assert asked_for(["--connect", "a:///", "--vm", "vm.yaml"]) == "a:///"
    assert asked_for(["--connect=a:///b?c=d", "--emulation"]) == "a:///b?c=d"
    assert asked_for(["--connect", "a:///", "--connect", "b:///"]) == "b:///"
    assert asked_for(["--connect"]) == ""


def test_qemu_is_who_the_launcher_is_and_a_file_that_is_there_stays(tmp_path: Path) -> None:
    conf = tmp_path / "root" / "etc" / "qemu.conf"
    with prepared(tmp_path / "root"):
        assert f'user = "+{os.getuid()}"' in conf.read_text()
    conf.write_text("mine")
    with prepared(tmp_path / "root"):
        assert conf.read_text() == "mine"


def test_a_user_is_told_where_huge_pages_are_and_root_finds_them() -> None:
    said = 'hugetlbfs_mount = "/dev/hugepages"'
    assert said in qemu_conf(107, 107, huge_pages=True)
    assert said not in qemu_conf(107, 107, huge_pages=False)
    assert said not in qemu_conf(0, 0, huge_pages=True)


def test_a_root_is_one_launchers_until_it_ends(tmp_path: Path) -> None:
    taken = pytest.raises(Refusal, match=f"{tmp_path}: another gpu-launcher has its VM there")
    with prepared(tmp_path), taken, prepared(tmp_path):
        pass
    with prepared(tmp_path):
        pass


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    """Full: no file of this process may be longer than ten bytes."""
    program = (
        "import resource, signal; from pathlib import Path; from launcher.runtime.embedded import prepared\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        f"with prepared(Path({str(tmp_path)!r})): pass\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "cannot make the root of libvirt's embedded driver: File too large; expected" in done.stderr
    assert list((tmp_path / "etc").iterdir()) == []


def test_a_root_is_taken_while_a_launcher_has_its_vm_there(tmp_path: Path) -> None:
    """Running or paused: so `check` tells a guest's own cards from those that are in use."""
    assert not is_taken(tmp_path / "nowhere")
    with prepared(tmp_path):
        assert is_taken(tmp_path)
    assert not is_taken(tmp_path)


def test_qemu_may_not_open_its_configuration_for_writing(tmp_path: Path) -> None:
    with prepared(tmp_path):
        assert (tmp_path / "etc" / "qemu.conf").stat().st_mode & 0o777 == 0o444


def test_a_number_that_is_another_processs_now_is_not_libvirts_to_end(tmp_path: Path) -> None:
    """In a container that starts again. Of a QEMU that is there, or that is nobody, libvirt knows what to do."""
    state = tmp_path / "run" / "qemu"
    state.mkdir(parents=True)

    def write(name: str, number: int) -> None:
        (state / f"{name}.xml").write_text(
            f"<!-- by libvirt -->\n<domstatus state='running' pid='{number}'>\n</domstatus>"
        )
        (state / f"{name}.pid").write_text(f"{number}\n")

    write("theirs", os.getpid())
    write("gone", 4194304)
    write("starting", 0)
    (state / "starting.pid").unlink()
    (state / "nonsense.xml").write_text("<domstatus>")
    pretends = [sys.executable, "-c", "import time; time.sleep(60)", "guest=ours,debug-threads=on"]
    with subprocess.Popen(pretends) as qemu:
        until(lambda: b"guest=ours" in Path(f"/proc/{qemu.pid}/cmdline").read_bytes())  # exec(2) shows it at its end
        write("ours", qemu.pid)
        status = (state / "ours.xml").read_text()
        (state / "ours.xml").write_text(status.replace(f"pid='{qemu.pid}'", "pid='0'"))  # libvirt did not know it yet
        try:
            with prepared(tmp_path):
                numbers = {path.stem: int(path.read_text()) for path in state.glob("*.pid")}
        finally:
            qemu.kill()
    assert numbers == {**dict.fromkeys(("theirs", "gone", "starting"), 4194305), "ours": qemu.pid}
    for name, number in numbers.items():
        assert f" pid='{number}'>" in (state / f"{name}.xml").read_text()


def test_what_libvirt_was_writing_when_it_was_killed_goes(tmp_path: Path) -> None:
    for half in (tmp_path / "etc" / "qemu" / "vm.xml.new", tmp_path / "run" / "qemu" / "vm.xml.new"):
        half.parent.mkdir(parents=True)
        half.touch()
    long = "default_a-name-that-is-long"
    (tmp_path / "run" / "qemu" / f"{long}.xml").touch()
    places = [tmp_path / "lib" / "qemu", tmp_path / "lib" / "qemu" / "channel" / "target"]
    for place in places:
        for name in ("domain-1-default_vm", f"domain-2-{long[:20]}"):
            (place / name).mkdir(parents=True)
            (place / name / "monitor.sock").touch()
    asking = tmp_path / "lib" / "qemu" / "qmp-19Q9Y3"
    asking.mkdir()
    (asking / "qmp.monitor").touch()
    with prepared(tmp_path):
        assert list(tmp_path.rglob("*.new")) == []
        assert not asking.exists()
        assert [path.name for place in places for path in place.glob("domain-*")] == [f"domain-2-{long[:20]}"] * 2
