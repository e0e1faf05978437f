"""A pod of one container without a kubelet: user, capabilities, mounts and variables are what the Pod says, and its
namespaces are its own. It needs root.

What a node would add and this doesn't: devices but /dev/net/tun, profiles of seccomp and AppArmor, and cgroups.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.processes import children
from tests.waiting import allowed

#: The pod's network: a card with these addresses, whose other end is the pod's too, with those of the gateway.
ADDRESS, GATEWAY = "10.244.1.5", "10.244.1.1"
ADDRESS_6, GATEWAY_6 = "fd00:244:1::5", "fd00:244:1::1"
DNS, SEARCH = "10.96.0.10", "cluster.example.com"
#: On a second network there is this one, and a tap of the container's user, net1, as a CNI makes it.
PEER = "192.0.2.1"

# What a container runtime does before it starts the first process. Its arguments: the container's root, the lines of
# the mounts (`target source option`), the lines of the sysctls (`file value`), and that process.
_SETUP = f"""
set -eu
root=$1 mounts=$2 sysctls=$3
shift 3
mount --make-rprivate /
ip link set lo up
ip link add eth0 type veth peer name gateway
ip addr add {ADDRESS}/24 dev eth0
ip addr add {GATEWAY}/24 dev gateway
ip addr add {ADDRESS_6}/64 dev eth0 nodad
ip link set eth0 up
ip link set gateway up
ip route add default via {GATEWAY} dev eth0
ip route add default via {GATEWAY_6} dev eth0
ip addr add {GATEWAY_6}/64 dev gateway nodad
ip link add lan type bridge
ip addr add {PEER}/24 dev lan
ip link set lan up
ip tuntap add net1 mode tap user 107
ip link set net1 master lan
ip link set net1 up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
echo "$sysctls" | while read -r file value; do
    [ -z "$file" ] || echo "$value" > "$root/proc/sys/$file"
done
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm"
mknod -m 666 "$root/dev/net/tun" c 10 200
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
echo "$mounts" | while read -r target source option; do
    if [ -d "$source" ]; then mkdir -p "$target"; else mkdir -p "${{target%/*}}"; touch "$target"; fi
    mount --bind "$source" "$target"
    mount -o "remount,bind,$option" "$target"
done
mount -o remount,bind,ro "$root"
cd "$root"
# Not by chroot, in which passt could make no user namespace of its own. The old root is then on top of the new one.
pivot_root . .
umount --lazy .
cd /
exec "$@"
"""
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


Object = Mapping[str, Any]


@dataclass(frozen=True)
class RunningPod:
    """A pod whose first process is `pid`, started by `parent`; what its container prints is in `log`."""

    container: Object
    parent: subprocess.Popen[bytes]
    pid: int
    log: Path
    environ: Mapping[str, str]
    user: tuple[str, ...]

    @contextmanager
    def executing(self, *argv: str, into: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command in the container, as `kubectl exec` starts it, that prints into a file; killed at the end."""
        entering = ("nsenter", f"--target={self.pid}", *_NAMESPACES, *self.user)
        with (
            into.open("wb") as printed,
            subprocess.Popen(
                [*entering, *argv], env=self.environ, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT
            ) as command,
        ):
            try:
                yield command
            finally:
                command.kill()

    def exec(self, *argv: str, seconds: float = 60) -> str:
        """What a command in the container prints; it has to succeed."""
        into = self.log.with_name("exec")
        with self.executing(*argv, into=into) as command:
            code = command.wait(seconds)
        assert code == 0, f"{argv} exited with {code}: {into.read_text()}"
        return into.read_text()

    def is_ready(self) -> bool:
        """Whether the container's readiness probe succeeds."""
        return self.answers("readinessProbe")

    def answers(self, probe: str) -> bool:
        """Whether that probe of the container's, a command, succeeds. Under emulation it has more time than it says."""
        with self.executing(*self.container[probe]["exec"]["command"], into=Path(os.devnull)) as command:
            return command.wait(60) == 0

    def from_outside(self, *argv: str | Path, seconds: float = 120) -> str:
        """What a program of this machine's prints that is in the pod's network alone; it has to succeed."""
        entering = ("nsenter", f"--target={self.pid}", "--net")
        done = subprocess.run([*entering, *argv], capture_output=True, text=True, timeout=allowed(seconds), check=False)
        assert done.returncode == 0, f"{argv} exited with {done.returncode}: {done.stderr}"
        return done.stdout

    def pids_of(self, name: str) -> list[int]:
        """The pod's processes of that name, by the numbers that they have here."""
        own, found = Path(f"/proc/{self.pid}/ns/pid").readlink(), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if (process / "ns" / "pid").readlink() == own and (process / "comm").read_text().strip() == name:
                    found.append(int(process.name))
        return found

    def until(self, what: str, look: Callable[[], bool], seconds: float) -> None:
        """Wait until `look` finds it; it fails with the log where it does not, or the pod ends first."""
        began = time.monotonic()
        while not look():
            ended = self.parent.poll()
            assert ended is None, f"the pod has ended with {ended}, and not: {what}; {self.log.read_text()}"
            limit = allowed(seconds)
            assert time.monotonic() - began < limit, f"not within {limit:.0f} s: {what}; {self.log.read_text()}"
            time.sleep(0.1)

    def terminate(self, seconds: float) -> int:
        """Ask the first process to end, as the kubelet does; its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.parent.wait(allowed(seconds))


@contextmanager
def running(
    objects: Iterable[Object],
    root: Path,
    directory: Path,
    images: Mapping[str, Path],
    volumes: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[RunningPod]:
    """The pod among these objects on the file system `root`; killed at the end of the block.

    Its volumes are empty ones, directories of the node's (this machine's), the config map among the objects, images,
    and claims and secrets: the directories with their files, by their names.
    `directory` is for its volumes and its log.
    """
    by_kind = {manifest["kind"]: manifest for manifest in objects}
    spec = by_kind["Pod"]["spec"]
    (container,) = spec["containers"]
    sources = {volume["name"]: _source(volume, by_kind, directory, images, volumes, spec) for volume in spec["volumes"]}
    # Sorted, since a mount on what another mounts comes after it.
    mounts = sorted(
        f"{_within(root, mount['mountPath'])} {sources[mount['name']]} {'ro' if mount.get('readOnly') else 'rw'}"
        for mount in container["volumeMounts"]
    )
    resolver = directory / "resolv.conf"
    resolver.write_text(f"nameserver {DNS}\nsearch {SEARCH}\n")
    mounts.append(f"{root}/etc/resolv.conf {resolver} ro")
    sysctls = [
        f"{sysctl['name'].replace('.', '/')} {sysctl['value']}" for sysctl in spec["securityContext"].get("sysctls", ())
    ]
    environ = {**_PATH, **{variable["name"]: _value(variable, by_kind["Pod"]) for variable in container.get("env", ())}}
    user = _user({**spec["securityContext"], **container["securityContext"]})
    # In a process namespace around the pod's own, whose end is the end of all in it: a process that becomes another
    # user is told of no parent's death.
    around = ("setpriv", "--pdeathsig=KILL", "unshare", "--pid", "--fork", "--kill-child")
    log = directory / "log"
    with log.open("wb") as printed:
        parent = subprocess.Popen(
            [
                *(*around, "unshare", *_NAMESPACES, "--fork"),
                *("sh", "-c", _SETUP, "sh", root, "\n".join(mounts), "\n".join(sysctls)),
                *(*user, *container["command"]),
            ],
            env=environ, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        first = _child(_child(parent.pid, parent, log), parent, log)
        yield RunningPod(container, parent, first, log, environ, user)
    finally:
        parent.kill()
        parent.wait()


def _value(variable: Object, pod: Object) -> str:
    """A variable's own value, or what the downward API says of a pod in the namespace default."""
    if "value" in variable:
        return str(variable["value"])
    _, field = variable["valueFrom"]["fieldRef"]["fieldPath"].split(".")
    return str({"namespace": "default", **pod["metadata"]}[field])


def _source(
    volume: Object,
    by_kind: Object,
    directory: Path,
    images: Mapping[str, Path],
    volumes: Mapping[str, Path],
    spec: Object,
) -> Path:
    """The directory that is mounted for a volume of the Pod."""
    if "persistentVolumeClaim" in volume:
        return volumes[volume["persistentVolumeClaim"]["claimName"]]
    if "secret" in volume:
        return volumes[volume["secret"]["secretName"]]
    if "hostPath" in volume:
        path = Path(volume["hostPath"]["path"])
        if volume["hostPath"]["type"] == "FileOrCreate":
            path.touch(0o644)
        return path
    if "image" in volume:
        return images[volume["image"]["reference"]]
    made: Path = directory / volume["name"]
    made.mkdir()
    if "configMap" in volume:
        assert volume["configMap"]["name"] == by_kind["ConfigMap"]["metadata"]["name"]
        for name, text in by_kind["ConfigMap"]["data"].items():
            (made / name).write_text(text)
    else:
        assert "emptyDir" in volume, f"no volume of this kind is made here: {volume}"
        # As the kubelet makes it: everybody's, and of the group that the pod names.
        shutil.chown(made, group=spec["securityContext"]["fsGroup"])
        made.chmod(0o2777)
    return made


def _within(root: Path, path: str) -> Path:
    """The path in the container's file system, through its symbolic links (/var/run is one), seen from outside."""
    found: Path = root
    for part in Path(path).relative_to("/").parts:
        found /= part
        if found.is_symlink():
            target = found.readlink()
            found = _within(root, str(target)) if target.is_absolute() else found.parent / target
    return found


def _user(security: Object) -> tuple[str, ...]:
    """The words before a command that give it the user and the capabilities of a securityContext."""
    capabilities = security["capabilities"]
    assert capabilities["drop"] == ["ALL"], "a runtime's default capabilities are not known here"
    assert security["readOnlyRootFilesystem"], "the image's file system is the same for all tests"
    added = "".join(f",+{name.lower()}" for name in capabilities.get("add", ()))
    return (
        "setpriv",
        f"--bounding-set=-all{added}",
        "--inh-caps=-all",
        f"--reuid={security['runAsUser']}",
        f"--regid={security['runAsGroup']}",
        "--clear-groups",
        *([] if security["allowPrivilegeEscalation"] else ["--no-new-privs"]),
    )


def _child(pid: int, parent: subprocess.Popen[bytes], log: Path) -> int:
    """The one child of a process, once there is one."""
    while not (found := children(pid)):
        assert parent.poll() is None, log.read_text()
        time.sleep(0.01)
    return found[0]
