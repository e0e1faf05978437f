"""docs/own-machine.md: its commands, run by a user without root, with a guest that talks on its serial port.

The Linux with ssh is in tests/lab/test_own_machine.py, and real cards are in the lab too.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.page import Replaced, blocks, replaced, session
from tests.launcher.kernels import boot_sector
from tests.processes import BIN, FIXTURES, ROOT
from tests.waiting import allowed, until

TEXT = (ROOT / "docs/own-machine.md").read_text()
BLOCKS = blocks(TEXT)
GREETING = b"The guest on the serial port\r\n"
#: What is asked of root; the machine is a recorded one, so nothing is bound.
_SUDO = f"""#!/bin/sh
case "$1" in
*/gpu-plugin) exec "$@" --dry-run --sysfs {FIXTURES}/sysfs/rtx-2060;;
tee) exec cat > /dev/null;;
esac
"""
_RUN = ".venv/bin/gpu-launcher run "
REPLACED = (
    Replaced("make .venv/ready", ":", "it is there"),
    Replaced('--gpu "$GPU" ', "--emulation ", "this machine may have no GPU and no KVM"),
    Replaced("--port 2222:22", "", "Debian 12's libvirt has no passt"),
    Replaced(
        "interfaces:\n          - {name: default, masquerade: {}, ports: [{port: 22}]}\n",
        "autoattachPodInterface: false\n",
        "the same",
    ),
    Replaced("      networks:\n      - {name: default, pod: {}}\n", "", "the same"),
    Replaced("          gpus:\n          - {name: gpu, deviceName: nvidia.com/pgpu}\n", "", "there is no GPU"),
    Replaced("firmware: {bootloader: {efi: {secureBoot: false}}}", "firmware: {}", "the guest is a boot sector"),
    Replaced("cpu: {cores: 2}", "cpu: {model: qemu64}", "the same"),
    Replaced("guest: 4Gi", "guest: 64Mi", "the same"),
    Replaced(
        ".venv/bin/gpu-launcher ctl console",
        "while echo; do sleep 0.2; done | timeout 60 .venv/bin/gpu-launcher ctl console | grep -m 1 guest || true",
        "nobody types Ctrl-]",
    ),
    Replaced("ssh -p 2222", ": ssh -p 2222", "the guest has none"),
    Replaced(".venv/bin/gpu-launcher ctl vnc --listen 127.0.0.1:5900", ":", "nobody looks at it"),
    Replaced(_RUN, f"exec {_RUN}", "its signals are ours"),
)
#: What `doctor` says of this machine by its exit code.
CODES = {"gpu-plugin doctor": {0, 3, 4}}


def _call(script: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """A shell's call and environment, as a user without root: here root is one in a namespace of its own."""
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    script = session(replaced(script, REPLACED), str(home), str(home / "bin"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "me", "XDG_RUNTIME_DIR": str(home / "run")}
    return [*user, "bash", "-c", script], environ


@pytest.fixture
def home(short_dir: Path, known_qemu: Path) -> Path:
    """A clone with a `.venv`, at home; and a cloud image."""
    (short_dir / ".venv/bin").mkdir(parents=True)
    for program in ("gpu-launcher", "gpu-plugin"):
        (short_dir / ".venv/bin" / program).symlink_to(BIN / program)
    (short_dir / ".ssh").mkdir()
    (short_dir / ".ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA me@here\n")
    (short_dir / "bin").mkdir()
    (short_dir / "bin/sudo").write_text(_SUDO)
    (short_dir / "bin/sudo").chmod(0o755)
    shutil.copytree(known_qemu, short_dir / "run/gpu-launcher/default_my-vm/cache")
    image = boot_sector(GREETING, obeys=False).ljust(1 << 20, b"\0")
    (short_dir / "noble-server-cloudimg-amd64.img").write_bytes(image)
    return short_dir


def _paste(script: str, home: Path) -> str:
    """Run commands of the page; what they print on stdout."""
    call, environ = _call(script, home)
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=allowed(60), check=False)
    codes = next((codes for part, codes in CODES.items() if part in script), {0})
    assert done.returncode in codes, (script, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def _running(script: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The `run` of the page, from when its guest runs; what it says is in `log`. Killed at the end."""
    call, environ = _call(script, home)
    log = home / "log"
    with log.open("wb") as written, subprocess.Popen(call, env=environ, stderr=written) as launcher:
        try:
            until(lambda: launcher.poll() is not None or "default_my-vm is running" in log.read_text(), 60)
            assert launcher.poll() is None, log.read_text()
            yield launcher
        finally:
            launcher.kill()


def test_the_pages_commands_start_a_vm_reach_it_and_end_it(home: Path) -> None:
    (start,) = (number for number, block in enumerate(BLOCKS) if _RUN in block.script)
    check, _, run = BLOCKS[start].script.partition(_RUN)
    for block in BLOCKS[:start]:
        _paste(block.script, home)
    assert "Errors: 0" in _paste(check, home)
    with _running(_RUN + run, home) as launcher:
        after = [_paste(block.script, home) for block in BLOCKS[start + 1 :]]
        launcher.send_signal(signal.SIGINT)
        log = home / "log"
        until(lambda: "another Ctrl-C ends the guest now" in log.read_text())
        assert launcher.poll() is None, "the guest does not obey"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 0
    assert GREETING.decode().strip() in "".join(after)
    assert log.read_text().endswith("INFO default_my-vm has ended: as requested\n")
    left = [path for path in home.rglob("*") if path.is_socket() or "state" in path.parts]
    assert left == []


def test_what_is_replaced_stands_on_the_page_and_nothing_else_is_root_s() -> None:
    scripts = "".join(block.script for block in BLOCKS)
    for entry in REPLACED:
        assert entry.old in scripts, entry.why
    assert TEXT.count("```sh\n") == len(BLOCKS)
    assert {block.heading for block in BLOCKS if "sudo" in block.script} == {
        "3. Give the card to vfio, as root",
        "4. Let your user run it, as root",
        "8. End it",
    }


def test_the_messages_that_the_page_quotes_are_ours() -> None:
    """Their parts that no machine changes."""
    said = (ROOT / "launcher/vm").rglob("*checks.py")
    source = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in said))
    for words in ("cannot be opened: ", "VFIO and SEV lock the guest's memory", ", the IOMMU group of "):
        assert words in TEXT
        assert words in source
