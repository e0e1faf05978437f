"""As whom `run` runs in a container that starts as root."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

_BECOME = """
import os, sys
from launcher.errors import Refusal
from launcher.running.user import asked_for, become
handover = asked_for(sys.argv[1:])
try:
    become(handover)
except Refusal as refusal:
    sys.exit(str(refusal))
os.stat("/proc/self/fd"), os.listdir("/proc/self/fd")
print(os.getresuid(), os.getresgid(), os.getgroups())
print([line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))])
"""


def became(*arguments: str, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*within, sys.executable, "-c", _BECOME, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_what_is_given_belongs_to_the_user_with_the_device_nodes_below_it(tmp_path: Path) -> None:
    group, function = tmp_path / "vfio" / "11", tmp_path / "vfio" / "devices" / "vfio0"
    function.parent.mkdir(parents=True)
    for node in (group, function):
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    text = function.with_name("README")
    text.touch()
    done = became("--user=107", f"--give={group.parent}", f"--give={tmp_path}/not-there")
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in (group, function, group.parent)} == {107}
    assert {path.stat().st_uid for path in (text, function.parent, tmp_path)} == {0}


def test_the_user_has_no_capability_and_of_its_groups_not_roots() -> None:
    done = became("--user=107", within=("setpriv", "--groups=0,5,2000"))
    assert done.returncode == 0, done.stderr
    who, capabilities = done.stdout.splitlines()
    assert who == "(107, 107, 107) (107, 107, 107) [5, 2000]"
    assert capabilities == r"['CapPrm:\t0000000000000000\n', 'CapEff:\t0000000000000000\n']"


def test_root_without_the_capabilities_is_told_which() -> None:
    done = became("--user=107", within=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert done.stderr == (
        "cannot become user 107: Operation not permitted; give the container the capabilities CHOWN, SETGID and SETUID "
        "(securityContext.capabilities.add), or have it start as that user and leave --user out\n"
    )


def test_three_capabilities_are_enough(tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    tmp_path.chmod(0o755)
    allowed = "--bounding-set=-all,+chown,+setgid,+setuid"
    done = became("--user=107", f"--give={node}", within=("setpriv", allowed, "--inh-caps=-all", "--no-new-privs"))
    assert (done.returncode, done.stderr) == (0, "")
    assert node.stat().st_uid == 107


def test_a_limit_that_cannot_be_raised_stays_as_it_is() -> None:
    within = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", "--memlock=4096:4096")
    assert became("--user=107", "--raise=memlock", within=within).returncode == 0


def test_who_is_that_user_already_has_nothing_to_hand_over() -> None:
    assert became("--user=107", "--give=/dev", within=("setpriv", "--reuid=107", "--clear-groups")).returncode == 0
