"""As whom a VM runs that root starts on an own machine: real processes, in a mount namespace with another /etc/passwd,
/run and /dev."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.runtime.own_user import nodes_of, user_of
from launcher.vm.volumes.images import becomes_guests
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.kernels import boot_sector
from tests.launcher.vms import write_vmi
from tests.processes import BIN, FIXTURES, ROOT, Program, running
from tests.waiting import allowed

_READS = [
    "setpriv",
    "--reuid=64055",
    "--regid=64055",
    "--clear-groups",
    sys.executable,
    "-c",
    "import launcher.__main__",
]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user"),
    pytest.mark.skipif(
        os.geteuid() == 0 and subprocess.run(_READS, cwd="/", capture_output=True, check=False).returncode != 0,
        reason="this checkout is closed to other users",
    ),
]

_ME, _QEMU = 1000, 64055
_PASSWD = f"""\
root:x:0:0:root:/root:/bin/sh
me:x:{_ME}:{_ME}::{{home}}:/bin/sh
another:x:1001:1001::/nowhere:/bin/sh
"""
_FOR_QEMU = f"libvirt-qemu:x:{_QEMU}:{_QEMU}::/var/lib/libvirt:/usr/sbin/nologin\n"
#: Nodes that are none of VFIO's: each is /dev/null, as root alone has it.
_NODES = ("kvm", "vhost-vsock", "vfio/11", "vfio/71")
_WITHIN = """\
set -e
cd "$1"; shift
mount --bind passwd /etc/passwd
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs dev
cp -a /dev/null /dev/zero /dev/random /dev/urandom dev
mkdir dev/shm dev/vfio
for node in kvm vhost-vsock vfio/11 vfio/71; do mknod -m 600 dev/$node c 1 3; done
mknod -m 666 dev/vfio/vfio c 1 3
mount --rbind /dev/shm dev/shm
mount --move dev /dev
for place in gpu-launcher/64055 user/1000; do
    mkdir -p /run/$place/gpu-launcher/default_vm
    cp -r cache /run/$place/gpu-launcher/default_vm
    chown -R ${place##*/} /run/$place
done
mount --make-rshared /
exec "$@"
"""
_VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {guest: 64Mi}
    cpu: {model: qemu64}
    devices:
      autoattachPodInterface: false
      tpm: {}
      disks: [{name: system, disk: {bus: virtio}}]
  volumes:
  - {name: system, persistentVolumeClaim: {claimName: system}}
"""


class Place(NamedTuple):
    """Where root has a VM.yaml and a disk.img, both its own; a command that runs another in the namespace."""

    directory: Path
    within: tuple[str | Path, ...]

    @property
    def disk(self) -> Path:
        return self.directory / "disk.img"

    def called(self, *command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], **(env or {})}
        whole = [*self.within, *command]
        return subprocess.run(
            whole, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=allowed(60), check=False
        )

    def check(self, *flags: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.called(BIN / "gpu-launcher", "check", self.directory / "vm.yaml", *flags, env=env)


@pytest.fixture
def place(short_dir: Path, known_qemu: Path) -> Place:
    short_dir.chmod(0o755)
    home = short_dir / "home"
    for directory in (home, short_dir / "dev"):
        directory.mkdir()
    os.chown(home, _ME, _ME)
    shutil.copytree(known_qemu, short_dir / "cache")
    (short_dir / "passwd").write_text(_PASSWD.format(home=home) + _FOR_QEMU)
    (short_dir / "vm.yaml").write_text(_VM)
    disk = short_dir / "disk.img"
    disk.write_bytes(boot_sector(b"A guest\r\n", obeys=False).ljust(1 << 20, b"\0"))
    disk.chmod(0o600)
    return Place(short_dir, ("setpriv", "--groups=0,5", "unshare", "--mount", "sh", "-c", _WITHIN, "-", short_dir))


class Process(NamedTuple):
    name: str
    user: set[str]
    groups: list[str]
    capabilities: set[str]
    gains_none: str
    environ: bytes


def _processes_of(launcher: Program) -> list[Process]:
    """All processes in the launcher's mount namespace, which only the VM's are in."""
    namespace = Path(f"/proc/{launcher.process.pid}/ns/mnt").readlink()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/mnt").readlink() != namespace:
                continue
            lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
            status = {name: words.split() for name, _, words in lines}
            environ = (process / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile, or has more capabilities than this process
        found.append(
            Process(
                name=status["Name"][0],
                user={*status["Uid"], *status["Gid"]},
                groups=status["Groups"],
                capabilities={status[each][0] for each in ("CapEff", "CapPrm", "CapInh", "CapAmb")},
                gains_none=status["NoNewPrivs"][0],
                environ=environ,
            )
        )
    return found


def _as_it_is(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode, status.st_ino, status.st_ctime_ns


@pytest.mark.parametrize(
    ("environ", "user", "name"),
    [
        ({}, _QEMU, "libvirt-qemu"),
        ({"SUDO_UID": str(_ME), "SUDO_USER": "me"}, _ME, "me"),
    ],
    ids=["root", "sudo"],
)
def test_no_process_of_a_vm_that_root_starts_is_root_and_what_it_is_lent_stays_as_it_was(
    place: Place, environ: dict[str, str], user: int, name: str
) -> None:
    becomes_guests(place.disk)  # which the first start of a disk writes to its attributes
    before = _as_it_is(place.disk)
    command = (place.directory / "vm.yaml", "--disk", f"system={place.disk}", "--emulation")
    secret = {"PATH": os.environ["PATH"], "TOKEN_OF_ROOT": "geheim", **environ}
    with running("gpu-launcher", "run", *command, env=secret, within=place.within) as launcher:
        launcher.wait_for_line("default_vm is running")
        processes = _processes_of(launcher)
        assert {"qemu-system-x86", "swtpm", "gpu-launcher"} <= {each.name for each in processes}
        for process in processes:
            assert process.user == {str(user)}, process
            assert (process.groups, process.capabilities) == ([], {"0" * 16}), process
            assert process.gains_none == "1", process
            assert b"geheim" not in process.environ, process
        assert _as_it_is(place.disk) == before
        inside = ("nsenter", f"--mount=/proc/{launcher.process.pid}/ns/mnt")
        control: list[str | Path] = [*inside, BIN / "gpu-launcher", "ctl", "kill"]
        subprocess.run(control, env={"PATH": os.environ["PATH"], **environ}, check=True)
        assert launcher.end() == 0
    assert (
        f"INFO the VM runs as the user {name}, who has {place.disk} until it ends; --user names another" in launcher.log
    )
    assert launcher.log[-1] == "INFO default_vm has ended: as requested"
    assert _as_it_is(place.disk) == before


def test_root_is_asked_for_by_name_and_warned(place: Place) -> None:
    done = place.check("--disk", f"system={place.disk}", "--emulation", "--user=root")
    assert done.stderr.startswith("gpu-launcher: warning: --user root: QEMU runs as root: a guest that takes over QEMU")
    assert done.stdout.startswith("Errors: 0")


def test_root_without_anybody_else_is_told_to_name_somebody(place: Place) -> None:
    (place.directory / "passwd").write_text(_PASSWD.format(home="/"))
    done = place.check("--disk", f"system={place.disk}", "--emulation")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "gpu-launcher: the VM's user: is not known: root starts this VM, without sudo, and has no user libvirt-qemu or "
        "qemu; name one that has little else, --user NAME"
    )
    unknown = place.check("--disk", f"system={place.disk}", "--emulation", "--user=nobody-there")
    assert unknown.returncode == 2
    assert "--user: 'nobody-there' is no user of this machine; expected a name or a number" in unknown.stderr


def _of_another(disk: Path) -> None:
    os.chown(disk, 1001, 1001)


def _a_link(disk: Path) -> None:
    disk.rename(disk.with_name("shadow"))
    disk.symlink_to("shadow")


def _below_a_link(disk: Path) -> None:
    (disk.parent / "real").mkdir()
    disk.rename(disk.parent / "real/disk.img")
    (disk.parent / "linked").symlink_to("real")


def _a_hard_link(disk: Path) -> None:
    disk.with_name("shadow").hardlink_to(disk)


def _in_a_closed_directory(disk: Path) -> None:
    disk.parent.chmod(0o711)
    closed = disk.with_name("closed")
    closed.mkdir(mode=0o700)
    disk.rename(closed / "disk.img")


def test_a_manifest_names_no_file_that_is_lent(place: Place) -> None:
    """What a command line names is root's own word."""
    with (place.directory / "vm.yaml").open("a") as manifest:
        manifest.write("  - {name: host, hostDisk: {path: /etc/shadow, type: Disk}}\n")
    done = place.check("--emulation", "--disk", f"system={place.disk}")
    says, wrong = done.stderr.splitlines()
    assert f", who has {place.disk} until it ends" in says
    assert "spec.volumes[1].hostDisk.path: '/etc/shadow' is in /etc" in wrong


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (_of_another, "disk.img", "is neither root's nor libvirt-qemu's"),
        (_a_link, "disk.img", "is reached by a link, and is {}/shadow"),
        (_below_a_link, "linked/disk.img", "is reached by a link, and is {}/real/disk.img"),
        (_a_hard_link, "disk.img", "has 2 names (hard links)"),
        (_in_a_closed_directory, "closed/disk.img", "is out of reach for the user libvirt-qemu, by {}/closed"),
    ],
)
def test_a_file_is_lent_only_if_it_is_certain_that_root_means_it(
    place: Place, change: Callable[[Path], None], name: str, words: str
) -> None:
    change(place.disk)
    disk = place.directory / name
    before = _as_it_is(disk)
    done = place.check("--disk", f"system={disk}", "--emulation")
    wrong = words.format(place.directory)
    assert done.stderr.startswith(f"gpu-launcher: {disk}: {wrong}; let it be libvirt-qemu's"), done.stderr
    assert (done.returncode, _as_it_is(disk)) == (1, before)


def test_a_file_system_that_cannot_show_a_file_as_anothers_is_named(place: Place) -> None:
    (place.directory / "ram").mkdir()
    disk = place.directory / "ram/disk.img"
    on_ramfs = f'mount -t ramfs -o mode=755 ramfs {disk.parent} && mv {place.disk} {disk} && exec "$@"'
    check = (BIN / "gpu-launcher", "check", place.directory / "vm.yaml", "--emulation", "--disk", f"system={disk}")
    done = place.called("sh", "-c", on_ramfs, "-", *check)
    assert done.stderr.startswith(
        f"gpu-launcher: {disk}: cannot be lent to libvirt-qemu by a mount, as on this file system: Invalid argument; "
    )


def test_where_root_may_make_no_mounts_it_lends_nothing_and_says_so(place: Place) -> None:
    """As in a container."""
    less = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    check = (BIN / "gpu-launcher", "check", place.directory / "vm.yaml", "--emulation")
    done = place.called(*less, *check, "--disk", f"system={place.disk}")
    assert done.stderr.startswith(
        f"gpu-launcher: a mount namespace: cannot be had, in which libvirt-qemu would be lent {place.disk}: "
    )
    os.chown(place.disk, _QEMU, _QEMU)
    assert place.called(*less, *check, "--disk", f"system={place.disk}").stdout.startswith("Errors: 0")


def test_a_program_that_the_user_may_not_read_is_refused(place: Place) -> None:
    """As where it is in root's home; it would end in the middle of an import."""
    closed = place.directory / "closed"
    (closed / "site").mkdir(parents=True)
    closed.chmod(0o700)
    env = {"PYTHONPATH": str(closed / "site")}
    done = place.check("--disk", f"system={place.disk}", "--emulation", env=env)
    words = (
        "is closed to the user libvirt-qemu, and has this program in it; put the program where everybody may read it"
    )
    assert done.stderr.startswith(f"gpu-launcher: {closed}: {words}"), done.stderr


def test_the_cards_and_kvm_are_lent_and_no_other_card(place: Place) -> None:
    """Where nothing is lent, `check` says that each cannot be opened."""
    manifest = place.directory / "vm.yaml"
    manifest.write_text(_VM.replace("tpm: {}", "gpus: [{name: gpu, deviceName: nvidia.com/pgpu}]"))
    looks = f'"$@" > {place.directory}/found; stat -c "%u %a %n" /dev/kvm /dev/vhost-vsock /dev/vfio/*'
    check = (BIN / "gpu-launcher", "check", manifest, "--sysfs", FIXTURES / "sysfs/two-rtx-3090", "--dev", "/dev")
    flags = ("--gpu", "e1:00.0", "--disk", f"system={place.disk}", "--give", "/dev/vhost-vsock")
    done = place.called("sh", "-c", looks, "-", *check, *flags)
    lent = re.search(r"who has (.*) until it ends", done.stderr)
    assert lent is not None, done.stderr
    assert lent[1] == f"/dev/kvm, /dev/vfio/71, {place.disk}, /dev/vhost-vsock"
    found = (place.directory / "found").read_text()
    assert found.startswith("Errors: "), done.stderr
    assert "cannot be opened" not in found, found
    nodes = [f"0 600 /dev/{node}" for node in _NODES]
    assert done.stdout.splitlines() == [*nodes, "0 666 /dev/vfio/vfio"]


_LENT = """
import os, pwd, sys
from pathlib import Path
from launcher.runtime import own_user
user = pwd.getpwnam("libvirt-qemu")
own_user.enter_own_namespace()
for path in sys.argv[1:]:
    assert own_user.lend(Path(path), user) is None
os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
for path in sys.argv[1:]:
    try:
        os.chmod(path, 0o600)
        os.close(os.open(path, os.O_RDWR))
        print("written")
    except OSError as error:
        os.close(os.open(path, os.O_RDONLY))
        print("read:", error.strerror)
"""


def test_an_image_that_nobody_writes_to_is_lent_to_be_read(place: Place) -> None:
    """So its owner, as which it is lent, cannot make it one that is written to."""
    base = place.directory / "base.img"
    base.touch(mode=0o400)
    done = place.called(sys.executable, "-c", _LENT, base, place.disk, "/dev/kvm")
    assert (done.stdout, done.stderr) == ("read: Read-only file system\nwritten\nwritten\n", "")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (base, place.disk)] == [0o400, 0o600]


def test_functions_with_nodes_of_their_own_are_lent_with_their_whole_groups() -> None:
    names = ("vfio/vfio", "vfio/12", "iommu", "vfio/devices/vfio1", "vfio/devices/vfio0")
    sysfs = FIXTURES / "sysfs/lab-modern"
    assert nodes_of(["01:00.0"], sysfs) == tuple(Path("/dev", name) for name in names)
    several = tuple(Path("/dev/vfio", name) for name in ("vfio", "24", "25"))
    assert nodes_of(["43:00.0"], FIXTURES / "sysfs/cards-of-several-groups") == several
    assert nodes_of(["00:1e.0"], sysfs) == nodes_of(["card"], sysfs) == nodes_of([], sysfs) == ()


def test_who_is_not_root_becomes_nobody(place: Place) -> None:
    me = ("setpriv", f"--reuid={_ME}", f"--regid={_ME}", "--clear-groups", BIN / "gpu-launcher")
    flags = ("--disk", f"system={place.disk}", "--user=libvirt-qemu")
    done = place.called(*me, "check", place.directory / "vm.yaml", *flags)
    assert done.stderr.startswith("gpu-launcher: --user libvirt-qemu: is another user, which only root can become; ")
    assert done.returncode == 2


def test_a_flag_of_the_command_line_that_looks_like_another_is_refused(place: Place) -> None:
    """What root lends is by the first process's reading of the command line."""
    run = (BIN / "gpu-launcher", "run", place.directory / "vm.yaml", "--emulation", "--name", "--disk=/etc/shadow")
    done = place.called(*run, "--disk", f"system={place.disk}")
    assert "--disk, --port: are read before any other flag, which was not understood so" in done.stderr
    assert done.returncode == 2


def test_the_user_is_the_one_that_is_named_else_who_called_sudo() -> None:
    sudo = {"SUDO_UID": str(pwd.getpwnam("daemon").pw_uid)}
    assert user_of(["--disk=a=b", "--user", "bin"], sudo).pw_name == "bin"
    assert user_of(["--user=0"], sudo).pw_name == "root"
    assert user_of(["--disk=a=b"], sudo).pw_name == "daemon"
    with pytest.raises(UserError, match="SUDO_UID: '4294967296' is no user of this machine"):
        user_of([], {"SUDO_UID": str(1 << 32)})


def test_root_without_a_user_is_told_what_qemu_is(gpu_launcher: Command, tmp_path: Path) -> None:
    """In a container that root starts, and where none of the flags of an own machine is given."""
    vm = write_vmi(tmp_path / "vm.yaml")
    (tmp_path / "file").touch()
    flags = ("--vm", vm, "--connect", f"qemu:///embed?root={tmp_path}/file/root", "--emulation")
    result = gpu_launcher("run", *flags)
    warning = "QEMU runs as root, as in no pod that gpu-launcher prints; --user names another user"
    assert f"WARNING {warning}\n" in result.stderr
    assert warning not in gpu_launcher("run", *flags, "--user=0").stderr
