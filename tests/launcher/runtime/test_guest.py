"""What happens to a domain beside us: on a libvirt in another process, and on the test driver."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest
from lxml import etree

from launcher.runtime import guest
from launcher.runtime.events import NotStarted
from launcher.runtime.sockets import socket_directory
from launcher.runtime.vm import Change
from launcher.vm.domain import socket_directory as socket_directory_of
from launcher.vm.facts import Facts
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.paths import KERNEL_BOOT, NVRAM
from program.ending import Ending
from program.errors import Refusal
from tests.launcher import kernels
from tests.launcher.cases import case
from tests.launcher.guests import a_vm, ending, started
from tests.launcher.vms import DEBIAN_12, domain_of, read_manifest, vmi_text, write_vmi
from tests.processes import running
from tests.waiting import allowed


@pytest.fixture
def xml(tmp_path: Path) -> str:
    return domain_of(read_manifest(write_vmi(tmp_path / "vm.yaml")), Layout(), Facts())


def listens(path: Path) -> bool:
    """A socket is there a moment before it can be called."""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


class GoneBeforeLibvirtConnects:
    """A domain whose QEMU has ended, and is not reaped yet, when libvirt connects to it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "monitor.sock"
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(self._path))

    def createWithFlags(self, flags: int) -> None:
        libvirt.open(f"qemu+unix:///system?socket={self._path}")


def test_a_qemu_that_has_ended_before_libvirt_connects_is_quoted_from_its_log(short_dir: Path) -> None:
    vm = a_vm()
    guest.start(GoneBeforeLibvirtConnects(short_dir), vm, paused=False, printed=lambda: "the machine\nis too small")
    event = vm.events.get(timeout=allowed(10))
    assert isinstance(event, NotStarted)
    assert ": Connection refused: the machine is too small; gpu-launcher check looks" in str(event.error)


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (
            "    machine: {type: pc-q35-rhel9.4.0}\n",
            r"spec\.domain\.machine\.type: pc-q35-rhel9\.4\.0 is no machine of QEMU .*launcher\.dev/machine: nearest",
        ),
        (
            "    cpu: {model: EPIC-Rome}\n",
            r"spec\.domain\.cpu\.model: EPIC-Rome is no CPU model .*; did you mean EPYC-Rome\?",
        ),
    ],
)
def test_a_name_that_qemu_has_not_is_refused_before_the_domain_is_defined(
    embedded_uri: str, tmp_path: Path, domain: str, said: str
) -> None:
    """It was: cannot define the domain: ... does not support machine type; report it. And of the model, at the start:
    Unknown CPU model."""
    (tmp_path / "vm.yaml").write_text(vmi_text(domain=domain))
    xml = domain_of(read_manifest(tmp_path / "vm.yaml"), Layout(), Facts(kvm=False))
    with guest.connected(embedded_uri, a_vm()) as connection, pytest.raises(Refusal, match=said):
        guest.refuse_unknown_names(connection, xml)


def test_names_that_qemu_has_and_those_of_another_hypervisor_are_not_refused(embedded_uri: str, xml: str) -> None:
    for uri, text in ((embedded_uri, xml.replace('type="kvm"', 'type="qemu"')), ("test:///default", xml)):
        assert guest.unknown_names_at(uri, text) == ()


def test_a_libvirt_that_is_built_without_passt_says_so_before_the_domain_is_defined(
    embedded_uri: str,
) -> None:
    """It was: cannot define the domain: XML error: Invalid value for attribute 'type' in element 'backend': 'passt';
    report it."""
    emulated = case("interface-masquerade").xml("--emulation")
    problems = [str(problem) for problem in guest.unknown_names_at(embedded_uri, emulated)]
    if libvirt.getVersion() > DEBIAN_12:
        assert problems == []
    else:
        (problem,) = problems
        assert problem.startswith("interface 'default': is passt's, and the libvirt here is built without it")
        assert "devices.autoattachPodInterface: false" in problem


#: libvirtd's exit status where it got no socket, or none of the kernel's netlink: seen once on a busy machine.
_NO_NETWORK = 6


def listening_libvirtd(directory: Path, sock: Path) -> subprocess.Popen[bytes]:
    """Start a libvirtd of our own, as an ordinary user's, and return it once it listens."""
    command = ["/usr/sbin/libvirtd", "--timeout", "600"]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "XDG_RUNTIME_DIR": str(directory)}
    log = directory / "libvirtd.log"
    for _ in range(3):
        with log.open("a") as stderr:
            process = subprocess.Popen(command, env=environ, stderr=stderr)
        deadline = time.monotonic() + allowed(30)
        while process.poll() is None and not listens(sock):
            assert time.monotonic() < deadline, f"no socket of libvirtd: {log.read_text()}"
            time.sleep(0.05)
        if process.poll() != _NO_NETWORK:
            break
    assert process.poll() is None, f"libvirtd ended with {process.returncode}: {log.read_text()}"
    return process


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A libvirtd and the URI of its test driver."""
    short_dir.chmod(0o777)
    sock = short_dir / "libvirt" / "libvirt-sock"
    with listening_libvirtd(short_dir, sock) as process:
        try:
            yield process, f"test+unix:///default?socket={sock}"
        finally:
            process.kill()


def test_a_libvirt_that_dies_is_noticed(daemon: tuple[subprocess.Popen[bytes], str], xml: str) -> None:
    process, uri = daemon
    vm = a_vm()
    with (
        guest.connected(uri, vm) as connection,
        guest.defined(connection, xml, vm) as domain,
        started(domain, vm),
    ):
        process.kill()
        assert ending(vm) is Ending.CONNECTION_LOST


def test_a_libvirt_that_dies_ends_run_in_one_line(daemon: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    process, uri = daemon
    with running("gpu-launcher", "run", "--vm", write_vmi(tmp_path / "vm.yaml"), "--connect", uri) as run:
        run.wait_for_line("default_vm is running")
        process.kill()
        assert run.end() == 14
    assert run.log[-1].startswith("ERROR default_vm has ended: the connection to libvirt is lost")
    assert not any("Traceback" in line for line in run.log)


def test_a_domain_that_somebody_else_ends_is_taken(xml: str) -> None:
    vm = a_vm()
    with guest.connected("test:///default", vm) as connection, guest.defined(connection, xml, vm) as domain:
        with started(domain, vm):
            domain.destroy()
            assert ending(vm) is Ending.TAKEN
        assert not domain.isActive()


def test_a_guest_that_powers_itself_off_has_done_so(xml: str) -> None:
    vm = a_vm()
    with (
        guest.connected("test:///default", vm) as connection,
        guest.defined(connection, xml, vm) as domain,
        started(domain, vm),
    ):
        domain.shutdown()
        assert ending(vm) is Ending.POWERED_OFF


def test_what_happens_to_a_domain_is_told_in_libvirts_words(xml: str) -> None:
    vm = a_vm()
    told = list[Change]()
    with (
        vm.telling(told.append),
        guest.connected("test:///default", vm) as connection,
        guest.defined(connection, xml, vm) as domain,
    ):
        with started(domain, vm):
            assert guest.runs(domain)
            domain.suspend()
            assert not guest.runs(domain)
            guest.ask_to_shut_down(domain)
            assert ending(vm) is Ending.POWERED_OFF
        assert [(change.event, change.reason) for change in told] == [
            ("", ""),
            ("started", "booted"),
            ("suspended", "paused"),
            ("resumed", "unpaused"),
            ("stopped", "shutdown"),
        ]
    assert not guest.runs(domain)


def test_what_a_killed_launcher_has_left_in_its_own_libvirt_is_forgotten(embedded_uri: str, xml: str) -> None:
    vm, emulated = a_vm(), xml.replace('type="kvm"', 'type="qemu"')
    with guest.connected(embedded_uri, vm) as connection:
        connection.defineXML(emulated)
        guest.forget(connection, "default_vm", emulated)
        guest.forget(connection, "default_vm", emulated)
        assert connection.listAllDomains() == []


def test_a_domain_that_somebody_else_started_is_not_started_again(xml: str) -> None:
    vm = a_vm()
    with guest.connected("test:///default", vm) as connection, guest.defined(connection, xml, vm) as domain:
        domain.create()
        with pytest.raises(Refusal, match="cannot start the domain"), started(domain, vm):
            pass
        assert domain.isActive()
        domain.destroy()


def test_what_libvirt_says_in_lines_is_one_line(tmp_path: Path) -> None:
    path = write_vmi(tmp_path / "vm.yaml")
    xml, vm = domain_of(read_manifest(path), Layout(), Facts()), a_vm()
    xml = xml.replace(">1</vcpu>", ">4000000000</vcpu>")
    with (
        guest.connected("test:///default", vm) as connection,
        pytest.raises(Refusal) as error,
        guest.defined(connection, xml, vm),
    ):
        pass
    assert "\n" not in str(error.value)


def test_a_failure_of_libvirt_on_the_way_is_a_refusal() -> None:
    refused = pytest.raises(Refusal, match="libvirt: cannot go on at test:///default: Domain not found")
    with refused, guest.connected("test:///default", a_vm()) as connection:
        connection.lookupByName("nobody")


def test_a_guest_that_panics_and_is_kept_has_crashed(embedded_uri: str, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel"
    kernel.write_bytes(kernels.multiboot())
    panics = "panicDevices: [{}, {model: hyperv}]\n      autoattachPodInterface: false"
    boots = "    cpu: {model: qemu64}\n    firmware: {kernelBoot: {container: {image: x, kernelPath: /kernel}}}\n"
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(vmi_text(domain=boots, name="panics").replace("autoattachPodInterface: false", panics))
    vmi = read_manifest(manifest)
    xml = domain_of(vmi, Layout(), Facts(kvm=False)).replace(f"{KERNEL_BOOT}/kernel", str(kernel))
    vm = a_vm()
    with (
        socket_directory(socket_directory_of(vmi, Facts())),
        guest.connected(embedded_uri, vm) as connection,
        guest.defined(connection, xml, vm) as domain,
        started(domain, vm),
    ):
        assert ending(vm) is Ending.PANICKED
        assert domain.isActive(), "kept, for its memory to be looked at"
    assert not socket_directory_of(vmi, Facts()).exists()


@pytest.mark.parametrize("persistent", [True, False])
def test_efi_variables_stay_where_the_manifest_wants_them_to(
    embedded_uri: str, tmp_path: Path, persistent: bool
) -> None:
    """Libvirt makes the file at the start, and here it is there before; what libvirt has named goes with the domain."""
    bootloader = f"    firmware: {{bootloader: {{efi: {{persistent: {str(persistent).lower()}}}}}}}\n"
    vmi = read_manifest(write_vmi(tmp_path / "vm.yaml", domain=bootloader))
    xml = domain_of(vmi, Layout(), Facts(kvm=False)).replace(NVRAM, str(tmp_path))
    vm = a_vm()
    with guest.connected(embedded_uri, vm) as connection, guest.defined(connection, xml, vm) as domain:
        said = etree.fromstring(domain.XMLDesc()).findtext("os/nvram")
        variables = Path(said or tmp_path / "unnamed")
        assert (variables == tmp_path / "vm_VARS.fd") is persistent
        variables.parent.mkdir(parents=True, exist_ok=True)
        variables.touch()
    assert variables.exists() is (persistent or said is None)
