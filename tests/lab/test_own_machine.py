"""docs/own-machine.md as it stands, but for what is in the table: in a clean clone on Debian 13, by a user without root
and without a GPU, with a Linux that has ssh. tests/test_own_machine.py runs the page with less.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.image.guest import guest_disk
from tests.image.pod import RunningPod, running
from tests.lab.build import dependencies, image_root
from tests.lab.page import Replaced, blocks, replaced, session
from tests.processes import ROOT

_USER = 1000
_CLONE = "/home/me/gpu-launcher"
_RUN = ".venv/bin/gpu-launcher run "
_SSH = "ssh -p 2222 -o StrictHostKeyChecking=accept-new ubuntu@127.0.0.1 lspci -nn"
REPLACED = (
    Replaced("make .venv/ready", ":", "no registry is reached: the packages are Debian's and the lab's"),
    Replaced('--gpu "$GPU" ', "--emulation ", "there is no GPU and no KVM"),
    Replaced("          gpus:\n          - {name: gpu, deviceName: nvidia.com/pgpu}\n", "", "the same"),
    Replaced("cpu: {cores: 2}", "cpu: {model: qemu64}", "the same"),
    Replaced("guest: 4Gi", "guest: 512Mi", "the guest is small"),
    Replaced(
        ".venv/bin/gpu-launcher ctl console",
        "timeout 600 .venv/bin/gpu-launcher ctl console | sed '/GUEST ready/q'",
        "nobody types Ctrl-]",
    ),
    Replaced(_SSH, ":", "this Debian has no ssh: it is called beside it, see below"),
    Replaced(
        ".venv/bin/gpu-launcher ctl vnc --listen 127.0.0.1:5900",
        ".venv/bin/gpu-launcher ctl screenshot screen.png; head -c 4 screen.png | tail -c 3",
        "nobody looks at it: it is said to be one",
    ),
)
_PROGRAM = """\
#!/usr/bin/python3
from {package}.__main__ import main
main()
"""
_POD: Mapping[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "machine"},
    "spec": {
        "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": {"fsGroup": _USER, "runAsUser": _USER, "runAsGroup": _USER},
        "containers": [
            {
                "name": "machine",
                "command": ["sh", "-c", "echo up; exec sleep infinity"],
                "env": [
                    {"name": "HOME", "value": "/home/me"},
                    {"name": "USER", "value": "me"},
                    {"name": "XDG_RUNTIME_DIR", "value": "/home/me/run"},
                    {"name": "PYTHONPATH", "value": f"/home/me/site:{_CLONE}"},
                ],
                "securityContext": {
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": True,
                },
                "volumeMounts": [{"name": "home", "mountPath": "/home/me"}, {"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
    },
}


def _clone(home: Path) -> Path:
    """The working tree's files that git has, or would take, and `.venv/bin`."""
    clone = home / "gpu-launcher"
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name, follow_symlinks=False)
    (clone / ".venv/bin").mkdir(parents=True)
    for program, package in (("gpu-launcher", "launcher"), ("gpu-plugin", "plugin")):
        script = clone / ".venv/bin" / program
        script.write_text(_PROGRAM.format(package=package))
        script.chmod(0o755)
    return clone


def _home(directory: Path) -> Path:
    """The user's home: a clone, a key, a cloud image, a sudo that does nothing, and the Python packages."""
    home = directory / "home"
    clone = _clone(home)
    (home / "run").mkdir()
    (home / "bin").mkdir()
    (home / "bin/sudo").write_text("#!/bin/sh\ncase $1 in tee) exec cat > /dev/null;; esac\n")
    (home / "bin/sudo").chmod(0o755)
    (home / ".ssh").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / ".ssh/id_ed25519"], check=True)
    shutil.copy(guest_disk(), clone / "noble-server-cloudimg-amd64.img")
    (directory / "layer").mkdir()
    subprocess.run(["tar", "-xf", dependencies() / "layer.tar", "-C", directory / "layer"], check=True)
    (site,) = (directory / "layer").rglob("dist-packages")
    shutil.move(site, home / "site")
    for path in (home, *home.rglob("*")):
        os.chown(path, _USER, _USER, follow_symlinks=False)
    return home


@contextmanager
def _debian(directory: Path) -> Iterator[Path]:
    """A Debian 13 over the lab's, which stays as it is."""
    above, work, root = (directory / name for name in ("above", "work", "root"))
    for each in (above, work, root):
        each.mkdir()
    options = f"lowerdir={image_root() / 'root'},upperdir={above},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RunningPod]:
    home = _home(tmp_path)
    with _debian(tmp_path) as root, running([_POD], root, tmp_path, {}, {"home": home}) as machine:
        machine.until("it is up", lambda: machine.log.read_text() == "up\n", 60)
        yield machine


def _session(script: str) -> tuple[str, ...]:
    return "bash", "-c", session(replaced(script, REPLACED), _CLONE, "/home/me/bin")


def _status(process: int) -> str:
    """What the kernel says of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_the_page_from_a_clean_clone_to_ssh_and_back_without_root(machine: RunningPod, tmp_path: Path) -> None:
    page = blocks((ROOT / "docs/own-machine.md").read_text())
    (start,) = (number for number, block in enumerate(page) if _RUN in block.script)
    check, _, run = page[start].script.partition(_RUN)
    for block in page[:start]:
        if "doctor" in block.script:
            machine.exec(*_session(f"{block.script.rstrip()} || [ $? -ge 3 ]"))  # the worst finding on this machine
        else:
            machine.exec(*_session(block.script))
    assert machine.exec(*_session(check)).startswith("Errors: 0, ")
    log = tmp_path / "run.log"
    with machine.executing(*_session(f"exec {_RUN}{run}"), into=log) as launcher:
        machine.until("it runs", lambda: "default_my-vm is running" in log.read_text(), 120)
        # The guest's, and perhaps one that libvirt has just asked what it can do.
        statuses = [_status(qemu) for qemu in machine.pids_of("qemu-system-x86")]
        said = "".join(machine.exec(*_session(block.script), seconds=660) for block in page[start + 1 :])
        key = tmp_path / "home/.ssh/id_ed25519"
        os.chown(key, 0, 0)  # ssh takes no other's
        options = ("-i", key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
        ssh = ("ssh", "-p", "2222", *options, "root@127.0.0.1")
        hello = machine.from_outside(*ssh, "echo hello from $(hostname)")
        # The port is this machine's own alone.
        addresses = machine.from_outside("ss", "--listening", "--tcp", "--numeric", "--no-header")
        os.kill(min(machine.pids_of("gpu-launcher")), signal.SIGINT)
        assert launcher.wait(90) == 0, log.read_text()
    assert any(statuses)
    for status in filter(None, statuses):
        assert f"\nUid:\t{_USER}\t{_USER}\t{_USER}\t{_USER}\n" in status
        assert "\nCapEff:\t0000000000000000\n" in status
    assert "GUEST firmware EFI" in said
    assert "PNG" in said
    assert hello == "hello from (none)\n"
    assert [line.split()[3] for line in addresses.splitlines()] == ["127.0.0.1:2222"]
    lines = log.read_text()
    assert " INFO another Ctrl-C ends the guest now\n" in lines
    assert lines.endswith(" INFO default_my-vm has ended: as requested\n")
    assert not (tmp_path / "home/.local/state/gpu-launcher/default_my-vm/var").exists()


def test_what_is_replaced_stands_on_the_page() -> None:
    scripts = "".join(block.script for block in blocks((ROOT / "docs/own-machine.md").read_text()))
    for entry in REPLACED:
        assert entry.old in scripts, entry.why
