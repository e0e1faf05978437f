"""A cluster of one node as the driver meets it: the stand-in for the API server, a scheduler that allocates, and the
kubelet's side of DRA over real sockets."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from pci.slices import DRIVER
from plugin.kubelet_api.dra_health_v1 import health_pb2
from plugin.kubelet_api.dra_v1 import dra_pb2 as api
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2 as found
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc as found_rpc
from tests.apiserver import APIServer, running_apiserver
from tests.plugin import daemon
from tests.processes import Program
from tests.waiting import allowed, until

#: On a busy machine a plugin takes long to start.
wait_until = partial(daemon.wait_until, seconds=120)

NODE = "node-1"
CONFIG = "serve: dra\n"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/vms/resourceclaims"


class DRAKubelet:
    """The kubelet's side: finds the driver in its plugins_registry, and asks the youngest of its sockets."""

    def __init__(self, registry: Path) -> None:
        self.registry = registry
        self.info: found.PluginInfo | None = None

    def socket(self) -> Path:
        """Register with every driver that is there, as one that starts does; return the youngest's socket."""
        wait_until(self._find)
        assert self.info is not None
        return Path(self.info.endpoint)

    def _find(self) -> bool:
        self.info = None
        for path in self._by_age():
            with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel, suppress(grpc.RpcError):
                registration = found_rpc.RegistrationStub(channel)
                info = registration.GetInfo(found.InfoRequest(), timeout=allowed(5))
                if info.type == "DRAPlugin":
                    assert info.name == DRIVER
                    status = found.RegistrationStatus(plugin_registered=True)
                    registration.NotifyRegistrationStatus(status, timeout=allowed(5))
                    self.info = info
        return self.info is not None

    def _by_age(self) -> list[Path]:
        ages = []
        for path in self.registry.glob("*.sock"):
            with suppress(FileNotFoundError):  # what a driver that was killed has left, the next one removes
                ages.append((path.stat().st_ctime_ns, path))
        return [path for _, path in sorted(ages)]

    def prepare(self, *claims: dict[str, Any]) -> dict[str, api.NodePrepareResourceResponse]:
        """Ask again while the driver is still at work, as the kubelet does."""
        request = api.NodePrepareResourcesRequest(claims=map(reference, claims))
        answers: dict[str, api.NodePrepareResourceResponse] = {}

        def is_done() -> bool:
            with grpc.insecure_channel(f"unix:{self.socket()}", options=_OPTIONS) as channel:
                response = dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=allowed(45))
            assert set(response.claims) == {claim["metadata"]["uid"] for claim in claims}
            answers.update(response.claims)
            return not any(_GOES_ON in answer.error for answer in answers.values())

        until(is_done, 120)
        return answers

    def unprepare(self, *claims: dict[str, Any]) -> dict[str, str]:
        request = api.NodeUnprepareResourcesRequest(claims=map(reference, claims))
        errors: dict[str, str] = {}

        def is_done() -> bool:
            with grpc.insecure_channel(f"unix:{self.socket()}", options=_OPTIONS) as channel:
                response = dra_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=allowed(45))
            errors.update({uid: answer.error for uid, answer in response.claims.items()})
            return not any(_GOES_ON in error for error in errors.values())

        until(is_done, 120)
        return errors

    def health(self, version: str = "v1") -> dict[str, tuple[int, str]]:
        """What the first message of the stream of this version says of each device."""
        with grpc.insecure_channel(f"unix:{self.socket()}", options=_OPTIONS) as channel:
            stream = channel.unary_stream(
                f"/{version}.DRAResourceHealth/NodeWatchResources",
                request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
            )(health_pb2.NodeWatchResourcesRequest(), timeout=allowed(10))
            devices = next(iter(stream)).devices
            stream.cancel()
        return {each.device.device_name: (each.health, each.message) for each in devices}


_OPTIONS = [("grpc.enable_http_proxy", 0)]
#: In the error of a driver that answers before its work has ended (plugin.dra.tasks.StillAtWork).
_GOES_ON = "it goes on, and is asked"


def reference(claim: dict[str, Any]) -> api.Claim:
    metadata = claim["metadata"]
    return api.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


@dataclass
class Cluster:
    """One node with its driver's directories below `directory`."""

    directory: Path
    api: APIServer
    kubelet: DRAKubelet
    sys: Path
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def cdi(self) -> Path:
        return self.directory / "cdi"

    @contextmanager
    def driver(self, config: str = CONFIG, *arguments: str | Path, within: tuple[str, ...] = ()) -> Iterator[Program]:
        file = self.directory / "config.yaml"
        file.write_text(config)
        flags = ("--config", file, "--node-name", NODE, "--dra-state", self.state, "--cdi", self.cdi)
        where = ("--plugins-registry", self.kubelet.registry, "--kubeconfig", self.directory / "kubeconfig")
        with daemon.serve(self.sys, self.directory, *flags, *where, *arguments, within=within) as program:
            yield program

    def published(self) -> dict[str, dict[str, Any]]:
        """The node's devices at the API server by name, if its pool is complete."""
        slices = self.api.slices(NODE)
        if not slices:
            return {}
        newest = max(each["spec"]["pool"]["generation"] for each in slices)
        pool = [each["spec"] for each in slices if each["spec"]["pool"]["generation"] == newest]
        if len(pool) != pool[0]["pool"]["resourceSliceCount"]:
            return {}
        return {device["name"]: device for spec in pool for device in spec.get("devices", ())}

    def wait_for(self, *devices: str) -> None:
        """Wait until these devices, and no others, could be allocated."""
        wait_until(lambda: {name for name, each in self.published().items() if "taints" not in each} == set(devices))

    def claim(self, *devices: str, name: str | None = None, **changes: Any) -> dict[str, Any]:
        """A claim that the scheduler has allocated: a request for each device, gpu-0 and so on, with the conditions of
        its slice."""
        name = name or f"claim-{len(self.claims)}"
        published = self.published()
        results = [
            {"request": f"gpu-{number}", "driver": DRIVER, "pool": NODE, "device": device}
            | {field: each for field, each in published.get(device, {}).items() if field.startswith("binding")}
            for number, device in enumerate(devices)
        ]
        claim = {
            "metadata": {"namespace": "vms", "name": name, "uid": str(uuid.uuid4()), **changes.pop("metadata", {})},
            "status": {"allocation": {"devices": {"results": results, **changes}}},
        }
        self.claims[name] = claim
        return self.api.put(f"{_CLAIMS}/{name}", claim)

    def status(self, claim: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What the claim says of each of its devices: the conditions that hold, with their messages; and its data."""
        name = claim["metadata"]["name"]
        with self.api._changed:
            devices = self.api.objects[f"{_CLAIMS}/{name}"]["status"].get("devices", ())
        return {
            each["device"]: {
                **{one["type"]: one["message"] for one in each["conditions"] if one["status"] == "True"},
                **each.get("data", {}),
            }
            for each in devices
        }

    def deallocate(self, claim: dict[str, Any]) -> None:
        """As the scheduler does, if another node is to have the claim."""
        self.api.put(f"{_CLAIMS}/{claim['metadata']['name']}", {**claim, "status": {}})

    def delete(self, claim: dict[str, Any]) -> None:
        self.api.remove(f"{_CLAIMS}/{claim['metadata']['name']}")

    def specifications(self) -> dict[str, Any]:
        """The runtime's CDI specifications by the claim's UID."""
        specifications = {}
        for file in sorted(self.cdi.glob("*.json")):
            with suppress(FileNotFoundError):  # the driver has removed it meanwhile
                specifications[file.stem.partition("_")[2]] = json.loads(file.read_text())
        return specifications

    def checkpoint(self) -> dict[str, Any]:
        file = self.state / "checkpoint.json"
        return dict(json.loads(file.read_text())["claims"]) if file.exists() else {}


@contextmanager
def running_cluster(directory: Path, sys: Path) -> Iterator[Cluster]:
    registry = directory / "reg"
    registry.mkdir()
    with running_apiserver() as apiserver:
        apiserver.add_node(NODE)
        apiserver.kubeconfig(directory / "kubeconfig")
        yield Cluster(directory, apiserver, DRAKubelet(registry), sys)
