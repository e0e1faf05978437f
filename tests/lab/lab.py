"""The whole lab: a cluster in its box, and a machine that is its node."""

import json
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.vm.paths import MANIFEST, SOCKETS
from tests.lab import pods
from tests.lab.box import Box, opened_box
from tests.lab.control_plane import Cluster, running_control_plane
from tests.lab.machine import Machine
from tests.lab.node import IMAGES, Node, booted
from tests.lab.waiting import CommandFailed, NotYet, T
from tests.processes import ROOT, finished


@dataclass(frozen=True)
class Lab:
    box: Box
    cluster: Cluster
    node: Node
    machine: Machine

    def until(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """Box.until, for the tests."""
        return self.box.until(what, look, seconds)

    def start_plugin(self, config: Mapping[str, Any] = pods.CARDS, *arguments: str, base: str = "plugin") -> str:
        """Apply deploy/plugin, or another base in deploy/, with this config, and with these arguments besides; its pod,
        once it runs. Where the machine has not bound the cards itself, the init container does."""
        for component in self._components(config):
            label = f"gpu-launcher.dev/{Path(component).name}=true"
            self.cluster.kubectl("label", "node", self.node.name, label, "--overwrite")
        self.configure(config, *arguments, base=base)
        return self.plugin()

    def configure(self, config: Mapping[str, Any], *arguments: str, base: str = "plugin") -> None:
        """Apply the base with these: where only the config is another one, another ConfigMap, which the kubelet is
        made to look at now and not within a minute."""
        directory = "/run/lab/plugin"
        components = self._components(config)
        pods.overlay(self.box.path(directory), config, base=base, components=components, arguments=arguments)
        self.cluster.kubectl("apply", "-k", directory)
        looked = f"lab/looked={time.monotonic()}"
        self.cluster.kubectl("annotate", "pods", "-l", "app.kubernetes.io/name=gpu-plugin", "--overwrite", looked)

    def install_multus(self) -> None:
        """Have the node's pods attached by Multus from the next start of containerd on, and make a second network."""
        *installation, network = pods.second_network()
        self.cluster.apply(*installation)
        self.cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=50s")
        self.cluster.apply(network)
        self.node.sh(
            'printf \'{"cniVersion": "1.0.0", "name": "multus", "type": "multus", "kubeconfig": "/run/kubelet.conf",'
            ' "delegates": [%s]}\' "$(cat /lab/cni/10-lab.conflist)" > /lab/cni/00-multus.conf'
        )

    def prepare_runtime(self, *, gives_devices: bool) -> None:
        """Have containerd start again without a memlock limit, as deploy/node/memlock.conf has it; and where it
        `gives_devices`, with deploy/node/containerd.toml."""
        if gives_devices:
            toml = (ROOT / "deploy/node/containerd.toml").read_text()
            self.node.sh(
                f"cat > /lab/devices.toml << 'end of file'\n{toml}\nend of file\n"
                """sed -i '1i imports = ["/lab/devices.toml"]' /lab/containerd.toml"""
            )
        self.node.sh(
            "old=$(pidof containerd); keeper=$(awk '{print $4}' /proc/$old/stat)\n"
            "prlimit --pid $keeper --memlock=unlimited; kill $old\n"
            "while [ -e /proc/$old ]; do sleep 0.2; done; until ctr version > /dev/null 2>&1; do sleep 0.2; done"
        )

    def _components(self, config: Mapping[str, Any]) -> list[str]:
        """Paths in deploy/."""
        if config.get("bind") == "when-claimed":
            bind = ["dra/components/when-claimed"]
        else:
            bind = [] if self.machine.binds_at_boot else ["plugin/components/bind"]
        vgpus, fabric = ([f"plugin/components/{part}"] if part in config else [] for part in ("vgpus", "fabric"))
        return ["plugin/components/seccomp", *vgpus, *bind, *fabric]

    def plugin(self) -> str:
        """The plugin's pod, once it is ready and not about to go."""

        def ready() -> str | None:
            for pod in self.cluster.get_all("pods", "-l", "app.kubernetes.io/name=gpu-plugin"):
                conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
                if "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True":
                    return str(pod["metadata"]["name"])
            return None

        return self.until("the plugin's pod is ready", ready, 150)

    def gpu_plugin(self, pod: str, *arguments: str) -> str:
        """What `gpu-plugin` prints in its pod, by the config that is in force there."""
        return self.cluster.kubectl("exec", pod, "-c", "gpu-plugin", "--", "gpu-plugin", *arguments)

    def bind(self, *arguments: str) -> tuple[int, str]:
        """Run `gpu-plugin bind` and the like as the init container would: exit code, and what it said."""
        self.cluster.delete("pod", "binder")
        self.cluster.apply(pods.binder(self.cluster.get("daemonset", "gpu-plugin"), *arguments))
        self.wait_for_end("binder")
        return self.exit_code("binder"), self.cluster.kubectl("logs", "binder")

    def drivers(self, slot: str) -> list[str]:
        """Those of its functions, "none" for none."""
        links = self.node.sh(f"for f in /sys/bus/pci/devices/{slot}.*; do readlink $f/driver || echo /none; done")
        return [link.rpartition("/")[2] for link in links.split()]

    def allocatable(self, resource: str = pods.RESOURCE) -> int:
        """How many cards the node has, by what it tells the cluster."""
        return int(self.cluster.get("node", self.node.name)["status"]["allocatable"].get(resource, 0))

    def wait_for_cards(self, number: int, resource: str = pods.RESOURCE, seconds: float = 150) -> None:
        def look() -> bool:
            found = self.allocatable(resource)
            if found != number:
                raise NotYet(f"{found} of {resource}")
            return True

        self.until(f"{self.node.name} has {number} of {resource}", look, seconds)

    def container(self, pod: str) -> dict[str, Any]:
        """The status of the pod's only container."""
        container: dict[str, Any]
        (container,) = self.cluster.get("pod", pod)["status"]["containerStatuses"]
        return container

    def restarts(self, pod: str) -> int:
        """How often the pod's only container has been started again."""
        return int(self.container(pod)["restartCount"])

    def exit_code(self, pod: str) -> int:
        """That of the pod's only container, which has ended."""
        return int(self.container(pod)["state"]["terminated"]["exitCode"])

    def kill_kubelet(self) -> None:
        """Until another one runs."""
        before = self.node.sh("pidof kubelet")
        self.node.sh("kill -KILL $(pidof kubelet)")
        self.until("another kubelet runs", lambda: self.node.sh("pidof kubelet || true") not in ("", before), 60)

    def unschedulable(self, pod: str) -> str:
        """Why the scheduler has no place for the pod, once it says so."""

        def message() -> str | None:
            conditions = self.cluster.get("pod", pod)["status"].get("conditions", [])
            return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), None)

        return self.until(f"the scheduler says why {pod} is Pending", message, 60)

    def phase(self, pod: str) -> str:
        return str(self.cluster.get("pod", pod)["status"]["phase"])

    def wait_for_end(self, pod: str) -> None:
        self.until(f"{pod} has ended", lambda: self.phase(pod) in ("Succeeded", "Failed"), 150)

    def wait_for_log(self, pod: str, text: str, seconds: float = 150, *, times: int = 1) -> str:
        """The pod's log, once the text is in it that many times. It is followed: a kubelet that is asked for all of it
        again and again has less of its processor for the pod."""
        name = self._numbered(f"log-{pod}")
        file = self.box.logs / f"{name}.log"

        def log() -> str | None:
            follows = self.box.runs(name)
            found = file.read_text(errors="replace").rpartition("\n")[0] if file.exists() else ""
            if found.count(text) >= times:
                return found
            if not follows and self.phase(pod) not in ("Pending", "Running"):
                found = self.cluster.kubectl("logs", pod)
                assert found.count(text) >= times, f"{pod} has ended without {text!r}: {found}"
                return found
            if not follows and "running" in self.container(pod)["state"]:
                file.unlink(missing_ok=True)  # of a follower that a kubelet has ended
                self.box.spawn(name, *self.cluster.argv("logs", "--follow", pod))
            return None

        try:
            return self.until(f"{text!r} in the log of {pod}", log, seconds)
        finally:
            self.box.kill(name)

    @contextmanager
    def pod(self, name: str, cards: int, **how: Any) -> Iterator[str]:
        """The pod of a VM, by its name; deleted afterwards, if it is still there."""
        how.setdefault("grace", round(self.box.patience.allowed(60)))
        with self._enforced(how.get("level")):
            self.cluster.apply(*pods.vm(name, cards, **how))
        try:
            yield name
        finally:
            # They go with the pod.
            (self.box.logs / f"pod-{name}.log").write_text(
                _told(self.cluster.kubectl, "logs", name) + _told(self.cluster.kubectl, "describe", "pod", name)
            )
            self.cluster.delete("pod", name)

    @contextmanager
    def _enforced(self, level: str | None) -> Iterator[None]:
        """Within the block the namespace enforces this Pod Security level, which does not admit the plugin's pod."""
        label = "pod-security.kubernetes.io/enforce"
        if level is None:
            yield
            return
        self.cluster.kubectl("label", "namespace", "default", f"{label}={level}")
        try:
            yield
        finally:
            self.cluster.kubectl("label", "namespace", "default", f"{label}-")

    @contextmanager
    def vm(self, name: str, cards: int, **how: Any) -> Iterator[str]:
        """The same, once libvirt says that the VM runs: the launcher's log."""
        with self.pod(name, cards, **how):
            # Right after, it lists the devices: a card of ours has two functions.
            text, times = ("-> guest", 2 * cards) if cards else ("is running", 1)
            yield self.wait_for_log(name, text, 300, times=times)

    @contextmanager
    def holder(self, name: str, cards: int, **how: Any) -> Iterator[None]:
        """A pod that has as many cards and no VM, which would take most of a minute: once it runs."""
        with self.pod(name, cards, sleeps=True, grace=1, **how):
            self.until(f"{name} runs", lambda: self.phase(name) == "Running", 150)
            yield

    def foretold(self, pod: str) -> list[tuple[str, str]]:
        """Each device's host and guest address, as `gpu-launcher explain` in the VM's pod says."""
        found = json.loads(self.cluster.kubectl("exec", pod, "--", "gpu-launcher", "explain", MANIFEST, "--json"))
        return [(passed["host"], passed["guest"]) for entry in found["entries"] for passed in entry["passed"]]

    def runtime_spec(self, pod: str) -> dict[str, Any]:
        """What containerd has told runc of the pod's container, as `crictl inspect` has it."""
        identity = self.container(pod)["containerID"].rpartition("/")[2]
        found = self.node.sh(f"cat /run/containerd/io.containerd.runtime.v2.task/k8s.io/{identity}/config.json")
        spec: dict[str, Any] = json.loads(found)
        return spec

    def make_claim(self, name: str, says: str) -> None:
        """A claim whose disk begins with these words; it is on the node."""
        directory = f"/var/lib/claim-{name}"
        self.node.sh(
            f"mkdir -p {directory} && echo {says} > {directory}/disk.img"
            f" && truncate -s 1M {directory}/disk.img && chown -R 107:107 {directory}"
        )
        self.cluster.apply(*pods.claim(name, directory))

    def console(self, pod: str) -> "Console":
        """The guest's serial console, from its first character on: QEMU keeps a log of it, which is its user's."""
        name = self._numbered(f"{pod}-console")
        followed = f"exec setpriv --reuid=107 tail -n +1 -F {SOCKETS}/*/virt-serial0-log"
        self.box.spawn(name, *self.cluster.argv("exec", pod, "--", "sh", "-c", followed))
        return Console(self.box, self.box.logs / f"{name}.log")

    def _numbered(self, name: str) -> str:
        """The name, with a number, of a program that has no log yet."""
        return f"{name}-{len(list(self.box.logs.glob(f'{name}-*')))}"

    def inventory(self, plugin: str) -> dict[str, Any]:
        """The node's devices by address, as `gpu-plugin inventory --json` in its pod has them."""
        found = json.loads(self.gpu_plugin(plugin, "inventory", "--json"))
        return {device["id"]: device for device in found["devices"]}

    def published(self) -> dict[str, Any]:
        """The devices of all slices as the API server has them, by name."""
        slices = self.cluster.get_all("resourceslices")
        # A slice without any has `null` before Kubernetes 1.35.
        return {device["name"]: device for each in slices for device in each["spec"].get("devices") or ()}

    def allocated(self, pod: str) -> list[str]:
        """The names of the devices that the pod's claims have."""
        statuses = self.cluster.get("pod", pod)["status"].get("resourceClaimStatuses", [])
        claims = [self.cluster.get("resourceclaim", status["resourceClaimName"]) for status in statuses]
        allocations = [claim["status"]["allocation"] for claim in claims if claim.get("status", {}).get("allocation")]
        return [result["device"] for allocation in allocations for result in allocation["devices"]["results"]]

    def fit(self, directory: Path, manifest: Mapping[str, Any], *more: str) -> dict[str, Any]:
        """What `gpu-launcher fit` says of a VM and this cluster as they are now, by its slices, claims and classes, and
        `more` kinds of objects."""
        what = ",".join(("resourceslices", "resourceclaims", "deviceclasses", *more))
        (directory / "cluster.json").write_text(self.cluster.kubectl("get", what, "--all-namespaces", "-o", "json"))
        (directory / "vm.json").write_text(json.dumps(manifest))
        done = finished("gpu-launcher", "fit", directory / "vm.json", "--cluster", directory / "cluster.json", "--json")
        assert done.returncode in (0, 1), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def record(self, plugin: str, directory: Path) -> None:
        """The node's sysfs, as `gpu-plugin record` in its pod has it."""
        recording = "gpu-plugin record /tmp/recorded >&2 && tar -C /tmp/recorded -c . | base64; rm -r /tmp/recorded"
        archive = b64decode(self.cluster.kubectl("exec", plugin, "-c", "gpu-plugin", "--", "sh", "-c", recording))
        directory.mkdir()
        subprocess.run(["tar", "-C", directory, "-x"], input=archive, check=True)

    def does(self) -> str:
        """What keeps the node busy now, what its kernel has said last, and the pods: for a report of a few lines."""
        busy = _told(self.node.sh, "busybox top -b -n 1 | head -n 12; dmesg | tail -n 8")
        return f"{busy}\n{_told(self.cluster.kubectl, 'get', 'pods', '--all-namespaces')}"

    def collect_logs(self, directory: Path) -> None:
        """What every part has to say, for somebody who was not there."""
        _copy_logs(self.box, directory)
        views: Mapping[str, tuple[str, ...]] = {
            "objects.yaml": ("get", "nodes,pods,events", "--all-namespaces", "-o", "yaml"),
            "pods.txt": ("describe", "pods", "--all-namespaces"),
        }
        for name, arguments in views.items():
            (directory / name).write_text(_told(self.cluster.kubectl, *arguments))
        for log in ("containerd", "kubelet"):
            (directory / f"{log}.log").write_text(_told(self.node.sh, f"cat /var/log/{log}.log"))
        (directory / "pods.log").write_text(_told(self.node.sh, "tail -n +1 /var/log/pods/*/*/*.log"))


class Console:
    """What a guest has printed so far."""

    def __init__(self, box: Box, path: Path) -> None:
        self._box = box
        self._path = path

    def text(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 400, *, times: int = 1) -> str:
        """All of it, once the text is in it that many times."""

        def look() -> str | None:
            found = self.text()
            return found if found.count(text) >= times else None

        return self._box.until(f"{text!r} on the guest's console", look, seconds)

    def functions(self) -> dict[str, str]:
        """The guest's PCI functions as it lists them, once it has done so: vendor and device by address."""
        return {row[2]: row[3] for row in self._rows()}

    def nodes(self) -> dict[str, str]:
        """The NUMA node of each, as the guest's sysfs has it."""
        return {row[2]: row[5] for row in self._rows()}

    def ways(self) -> dict[str, tuple[str, ...]]:
        """The way to each in the guest's sysfs: its root, and the bridges from there down."""
        return {row[2]: tuple(row[7].split("/")[:-1]) for row in self._rows()}

    def _rows(self) -> list[list[str]]:
        tree = self.wait_for("GUEST end").rpartition("GUEST end")[0].rpartition("GUEST tree")[2]
        return [line.split() for line in tree.splitlines() if line.startswith("GUEST function")]


@contextmanager
def running_lab(machine: Machine, images: Path, logs: Path | None = None) -> Iterator[Lab]:
    """A box, a control plane in it and a node with these images; nothing is left of them afterwards.

    What a lab that does not come up has to say goes to `logs`.
    """
    with opened_box() as box, ExitStack() as stack:
        try:
            shutil.copy(images, box.path(IMAGES))
            cluster = stack.enter_context(running_control_plane(box))
            node = stack.enter_context(booted(box, cluster, machine))
        except BaseException:
            if logs is not None:
                _copy_logs(box, logs)
            raise
        yield Lab(box, cluster, node, machine)


def _copy_logs(box: Box, directory: Path) -> None:
    """In place of what an earlier run has left there."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(box.logs, directory)


def _told(ask: Callable[..., str], *arguments: str) -> str:
    """The answer, or why there is none: a lab whose test has failed may have lost any of its parts."""
    try:
        return ask(*arguments)
    except (CommandFailed, AssertionError, subprocess.TimeoutExpired) as error:
        return str(error)
