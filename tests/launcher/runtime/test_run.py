"""`gpu-launcher run` as a process: on libvirt's test driver, and once with a real QEMU."""

import json
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import libvirt
import pytest

from launcher.vm.domain import socket_directory
from launcher.vm.facts import Facts
from tests.conftest import Command, Machine
from tests.launcher.vms import DEBIAN_12, RTX_2060_VARIABLE, read_manifest, vmi_text, write_vmi
from tests.plugin.daemon import fetch, free_port
from tests.processes import FIXTURES, ROOT, running
from tests.waiting import allowed

ONE_GPU = FIXTURES / "vms" / "one-gpu.yaml"


def test_a_domain_is_defined_started_and_ended_by_sigterm(machine: Machine) -> None:
    arguments = ("--vm", ONE_GPU, "--connect", "test:///default", "--sysfs", machine("rtx-2060"))
    with running("gpu-launcher", "run", *arguments, env={RTX_2060_VARIABLE: "0000:01:00.0"}) as run:
        run.wait_for_line("companion: host 0000:01:00.3 -> guest 0000:01:00.3")
        run.send(signal.SIGTERM)
        assert run.end() == 0
    assert run.log == [
        "INFO lab_one-gpu is defined on test:///default",
        "INFO lab_one-gpu is running",
        "INFO ua-gpu-gpu1: host 0000:01:00.0 -> guest 0000:01:00.0",
        "INFO companion: host 0000:01:00.1 -> guest 0000:01:00.1",
        "INFO companion: host 0000:01:00.2 -> guest 0000:01:00.2",
        "INFO companion: host 0000:01:00.3 -> guest 0000:01:00.3",
        "INFO asking the guest to shut down; it has 30 s left",
        "INFO lab_one-gpu has ended: as requested",
    ]


def test_run_refuses_a_device_that_is_not_in_sysfs(gpu_launcher: Command, machine: Machine) -> None:
    result = gpu_launcher(
        *("run", "--vm", ONE_GPU, "--connect", "test:///default", "--sysfs", machine("two-rtx-3090")),
        env={RTX_2060_VARIABLE: "0000:86:00.0"},
    )
    assert result.stderr.startswith(
        "ERROR gpu 'gpu1': 0000:86:00.0 is not in sysfs; "
        f"expected all functions of its card in {machine('two-rtx-3090')}: "
    )
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)


def test_a_card_whose_nodes_are_not_in_the_container_is_refused_before_anything_is_defined(
    gpu_launcher: Command, machine: Machine, short_dir: Path
) -> None:
    result = gpu_launcher(
        *("run", "--vm", ONE_GPU, "--connect", f"qemu:///embed?root={short_dir}", "--emulation"),
        *("--sysfs", machine("rtx-2060")),
        env={RTX_2060_VARIABLE: "0000:01:00.0"},
    )
    assert (
        "gpu 'gpu1': /dev/vfio/1, the IOMMU group of 0000:01:00.0, is not in the container; expected" in result.stderr
    )
    assert result.returncode == 1
    left = [path for path in short_dir.rglob("*") if "one-gpu" in path.name or path.is_socket()]
    # Libvirt may have been asking its QEMU what it can; the next launcher there takes that away.
    assert [path for path in left if not path.parent.name.startswith("qmp-")] == []


def test_no_libvirt_where_the_uri_points_is_one_line_and_1(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    result = gpu_launcher("run", "--vm", vm, "--connect", f"qemu+unix:///system?socket={tmp_path}/nobody")
    assert "libvirt: cannot be reached at " in result.stderr
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)


def test_in_json_each_line_is_an_object_also_that_of_a_library_of_libvirts(
    gpu_launcher: Command, tmp_path: Path
) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    result = gpu_launcher("run", "--vm", vm, "--connect", "test:///nothing.xml", "--log-format", "json")
    library, error = map(json.loads, result.stderr.splitlines())
    assert "failed to load" in library["message"]
    assert (library["level"], error["level"], result.returncode) == ("INFO", "ERROR", 1)
    assert error["message"].startswith("libvirt: cannot be reached at test:///nothing.xml: ")


def test_a_domain_of_that_name_is_somebody_elses_and_stays(
    gpu_launcher: Command, machine: Machine, tmp_path: Path
) -> None:
    node = tmp_path / "node.xml"
    other = "<domain type='test'><name>lab_one-gpu</name><memory>1024</memory><os><type>hvm</type></os></domain>"
    node.write_text(f"<node>{other}</node>")
    result = gpu_launcher(
        *("run", "--vm", ONE_GPU, "--connect", f"test://{node}", "--sysfs", machine("rtx-2060")),
        env={RTX_2060_VARIABLE: "0000:01:00.0"},
    )
    assert result.stderr == (
        "ERROR libvirt: has a domain called lab_one-gpu already; undefine it, or use another connection\n"
    )
    assert result.returncode == 1


@pytest.mark.skipif(libvirt.getVersion() >= 11_006_000, reason="this libvirt knows TDX")
def test_a_libvirt_that_is_too_old_is_not_asked_to_take_the_domain(gpu_launcher: Command) -> None:
    result = gpu_launcher("run", "--vm", FIXTURES / "vms" / "tdx.yaml", "--connect", "test:///default")
    assert result.stderr.startswith(
        "ERROR launchSecurity.tdx: <launchSecurity type='tdx'> needs libvirt 11.6.0, and this is "
    )
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)


def test_a_root_that_is_not_absolute_is_refused_before_anything_is_made(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    result = gpu_launcher("run", "--vm", vm, "--connect", "qemu:///embed?root=here", "--emulation", "--user=0")
    assert "its root is no absolute path" in result.stderr
    assert (result.stderr.count("\n"), result.returncode) == (1, 2)
    assert not (ROOT / "here").exists()


def test_a_scratch_place_that_cannot_be_written_is_one_line_and_1(gpu_launcher: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    vm = write_vmi(tmp_path / "vm.yaml")
    uri = f"qemu:///embed?root={tmp_path}/file/root"
    result = gpu_launcher("run", "--vm", vm, "--connect", uri, "--emulation", "--user=0")
    assert "cannot make the root of libvirt's embedded driver: Not a directory" in result.stderr
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)


def test_a_place_for_the_sockets_that_cannot_be_made_is_said_and_1(gpu_launcher: Command, short_dir: Path) -> None:
    """Of a libvirt's QEMU that is on this machine; the test driver and another machine's need no place."""
    vm = write_vmi(short_dir / "vm.yaml", name=f"vm-{uuid4()}")  # its place is no other test's
    sockets = socket_directory(read_manifest(vm), Facts())
    sockets.parent.mkdir(exist_ok=True)
    sockets.touch()
    try:
        result = gpu_launcher("run", "--vm", vm, "--connect", f"qemu:///embed?root={short_dir}", "--emulation")
    finally:
        sockets.unlink()
        with suppress(OSError):
            sockets.parent.rmdir()
    *_, line = result.stderr.splitlines()  # before it, libvirt's own first words
    assert line.startswith(f"ERROR {sockets}: cannot make the directory for the sockets of the guest's console")
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)


def test_a_real_qemu_runs_a_domain_of_ours_and_nothing_is_left(short_dir: Path) -> None:
    """EFI firmware finds nothing to boot and ignores the power button, so that the grace period ends it."""
    vm = short_dir / "vm.yaml"
    uid = f"metadata:\n  uid: {uuid4()}\n"  # its sockets are nobody else's, another run of the tests' neither
    vm.write_text((FIXTURES / "vms" / "no-devices.yaml").read_text().replace("metadata:\n", uid))
    uri = f"qemu:///embed?root={short_dir}"
    with running("gpu-launcher", "run", "--vm", vm, "--connect", uri, "--emulation") as run:
        run.wait_for_line("default_no-devices is running")
        (pid_file,) = short_dir.glob("run/qemu/*no-devices*.pid")
        pid = int(pid_file.read_text())
        assert Path(f"/proc/{pid}/comm").read_text().startswith("qemu-system")
        sockets = socket_directory(read_manifest(vm), Facts())
        assert {path.name for path in sockets.iterdir()} == {"virt-serial0", "virt-vnc"}
        for name in ("virt-serial0", "virt-vnc"):
            with socket.socket(socket.AF_UNIX) as somebody:
                somebody.connect(str(sockets / name))
        asked = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.end() == 0
        assert time.monotonic() - asked < allowed(30), "its grace period is 2 s"
    assert "WARNING the guest is still there after its grace period; ending it" in run.log
    assert not Path(f"/proc/{pid}").exists()
    assert not sockets.exists()
    left = [path for path in short_dir.rglob("*no-devices*") if "log" not in path.parts]
    assert left == []


@pytest.mark.skipif(libvirt.getVersion() == DEBIAN_12, reason="Debian 12's libvirt is built without passt")
def test_passt_listens_on_the_guests_ports_and_ends_with_the_guest(short_dir: Path) -> None:
    port = free_port()
    vm, name = short_dir / "vm.yaml", f"vm-{uuid4()}"  # its sockets are no other test's
    default = f"interfaces: [{{name: default, passt: {{}}, ports: [{{port: {port}}}]}}]"
    vm.write_text(
        vmi_text(name=name).replace("autoattachPodInterface: false", default)
        + "  networks: [{name: default, pod: {}}]\n  terminationGracePeriodSeconds: 1\n"
    )
    uri = f"qemu:///embed?root={short_dir}"
    with running("gpu-launcher", "run", "--vm", vm, "--connect", uri, "--emulation") as run:
        run.wait_for_line(f"default_{name} is running")
        with socket.create_connection(("127.0.0.1", port)):
            pass
        run.send(signal.SIGTERM)
        assert run.end() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    left = [path for path in (short_dir / "run").rglob("*passt*") if not path.is_dir()]
    assert left == []


def test_its_metrics_are_served_until_it_ends_on_a_port_that_is_not_the_guests(
    gpu_launcher: Command, tmp_path: Path
) -> None:
    vm, port = write_vmi(tmp_path / "vm.yaml"), free_port()
    flags = ("--connect", "test:///default", f"--metrics=127.0.0.1:{port}", "--allow-host=vm.vms.svc")
    with running("gpu-launcher", "run", vm, *flags) as run:
        run.wait_for_line("default_vm is running")
        names = (socket.gethostname(), "vm", "vm.vms.svc", "evil.example")
        assert [fetch(port, "/metrics", name=name)[0] for name in names] == [200, 200, 200, 421]
        assert fetch(port, "/metrics")[1].count('gpu_launcher_vm_state{phase="running",state="running"') == 1
        run.send(signal.SIGTERM)
        assert run.end() == 0
    assert fetch(port, "/metrics") == (0, "")
    network = "interfaces: [{name: a, masquerade: {}, ports: [{port: 8080}]}]"
    forwards = vm.read_text().replace("autoattachPodInterface: false", network)
    vm.write_text(f"{forwards}  networks: [{{name: a, pod: {{}}}}]\n")
    result = gpu_launcher("run", vm, "--connect", "test:///default", "--metrics=8080")
    refused = "--metrics 8080: the pod's port is forwarded to the guest's, of interface 'a'; name another port"
    assert (refused in result.stderr, result.returncode) == (True, 2)
    result = gpu_launcher("run", vm, "--connect", "test:///default", "--allow-host=vm.vms.svc")
    refused = "--allow-host: is for --metrics; add --metrics, or leave it out"
    assert (refused in result.stderr, result.returncode) == (True, 2)
