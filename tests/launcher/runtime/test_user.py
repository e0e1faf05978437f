"""As whom `run` runs in a container that starts as root."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.runtime.user import Handover, asked_for
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

_SWITCH = """
import os, sys
from program.errors import Refusal
from launcher.runtime.user import asked_for, switch_user
handover = asked_for(sys.argv[1:])
try:
    switch_user(handover)
except Refusal as refusal:
    sys.exit(str(refusal))
os.stat("/proc/self/fd"), os.listdir("/proc/self/fd")
print(os.getresuid(), os.getresgid(), os.getgroups())
print([line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))])
"""


def became(*arguments: str, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*within, sys.executable, "-c", _SWITCH, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@contextmanager
def dev(tmp_path: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A directory, and what runs a command for which it is /dev/shm."""
    directory = tmp_path / "dev"
    directory.mkdir()
    yield directory, ("unshare", "--mount", "sh", "-c", f'mount --bind "{directory}" /dev/shm && exec "$0" "$@"')


def test_of_dev_what_is_given_belongs_to_the_user_with_the_nodes_below_it(tmp_path: Path) -> None:
    with dev(tmp_path) as (here, within):
        group, function = here / "vfio" / "11", here / "vfio" / "devices" / "vfio0"
        function.parent.mkdir(parents=True)
        for node in (group, function):
            os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        text = function.with_name("README")
        text.touch()
        done = became("--user=107", "--give=/dev/shm/vfio", "--give=/dev/shm/not-there", within=within)
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in (group, function, group.parent)} == {107}
    assert {path.stat().st_uid for path in (text, function.parent, here)} == {0}


def test_flags_may_be_two_words_as_everywhere(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    image.touch()
    flags = ("--user", "107", "--give", str(image), "--raise", "memlock")
    assert asked_for(flags) == Handover(107, (image,), ("memlock",))
    done = became(*flags)
    assert (done.returncode, image.stat().st_uid) == (0, 107), done.stderr


def test_anywhere_else_an_empty_file_alone_is_given(outside_dev: Path) -> None:
    """Whoever fills a volume might have put a link there, or the nodes of disks of the host; and a file with content is
    somebody's."""
    directory, node, image = outside_dev / "volume", outside_dev / "volume" / "sda", outside_dev / "volume" / "disk.img"
    database = outside_dev / "database"
    database.write_text("somebody's")
    directory.mkdir()
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    image.touch()
    shadow, link = outside_dev / "shadow", directory / "link.img"
    shadow.touch()
    link.symlink_to(shadow)
    for given in (directory, node, link, image, database, f"/dev/..{node}"):
        assert became("--user=107", f"--give={given}").returncode == 0
    assert image.stat().st_uid == 107
    assert {path.lstat().st_uid for path in (directory, node, link, shadow, database)} == {0}


def test_the_user_has_no_capability_and_of_its_groups_not_roots() -> None:
    done = became("--user=107", within=("setpriv", "--groups=0,5,2000"))
    assert done.returncode == 0, done.stderr
    who, capabilities = done.stdout.splitlines()
    assert who == "(107, 107, 107) (107, 107, 107) [5, 2000]"
    assert capabilities == r"['CapPrm:\t0000000000000000\n', 'CapEff:\t0000000000000000\n']"


def test_root_without_the_capabilities_is_told_which() -> None:
    done = became("--user=107", within=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert done.stderr == (
        "--user=107: cannot become that user: Operation not permitted; give the container the capabilities CHOWN, "
        "SETGID and SETUID (securityContext.capabilities.add), or have it start as that user and leave --user out\n"
    )


def test_three_capabilities_are_enough(tmp_path: Path) -> None:
    allowed = ("setpriv", "--bounding-set=-all,+chown,+setgid,+setuid", "--inh-caps=-all", "--no-new-privs")
    with dev(tmp_path) as (here, within):
        os.mknod(here / "node", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        done = became("--user=107", "--give=/dev/shm/node", within=(*within, *allowed))
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "node").stat().st_uid == 107


def test_a_limit_that_cannot_be_raised_stays_as_it_is() -> None:
    within = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", "--memlock=4096:4096")
    assert became("--user=107", "--raise=memlock", within=within).returncode == 0


def test_who_is_that_user_already_has_nothing_to_hand_over() -> None:
    assert became("--user=107", "--give=/dev", within=("setpriv", "--reuid=107", "--clear-groups")).returncode == 0


_SWITCH_TO_OWNER = "import os, sys; from pathlib import Path; from launcher.runtime.user import switch_to_owner_of\n"
_SWITCH_TO_OWNER += "switch_to_owner_of(Path(sys.argv[1])); print(os.getuid())"


def test_the_owner_of_a_file_is_not_who_owns_what_a_link_leads_to(tmp_path: Path) -> None:
    """Whoever has a VM could otherwise have root's `ctl` ask another user's."""
    socket, link = tmp_path / "socket", tmp_path / "link"
    socket.touch()
    os.chown(socket, 107, 107)
    link.symlink_to(socket)
    os.chown(link, 1000, 1000, follow_symlinks=False)
    for path, user in ((socket, "107"), (link, "1000")):
        call = [sys.executable, "-c", _SWITCH_TO_OWNER, str(path)]
        assert subprocess.check_output(call, cwd=ROOT, text=True) == f"{user}\n"
