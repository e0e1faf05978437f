"""A DRA driver of CPUs, each a device, which a claim can have beside cards: runs in a pod of the plugin's image, where
`tests` is not. Its names are those of kubernetes-sigs' dra-driver-cpu.

That one pins a container to the claim's CPUs by a plugin of the container runtime (NRI); here a hook of the claim's CDI
device does.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc

from plugin.dra.apiserver import APIServer
from plugin.dra.claims import Reference
from plugin.kubelet_api.dra_v1 import dra_pb2 as api
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.watch.registry import RegistrationServicer

DRIVER = "dra.cpu"
#: A device's name begins so, and ends in the number of its CPU.
DEVICE = "cpudev"
SOCKETS, CDI = Path("/var/lib/kubelet/plugins_registry"), Path("/var/run/cdi")
_SOCKET = SOCKETS / f"{DRIVER}.sock"
#: Runs on the node once the container has its cgroup, and reads the container's state (OCI's runtime.md).
_HOOK = r"""
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/')
echo $DRA_CPUSET > /sys/fs/cgroup$(sed s/^0::// /proc/$pid/cgroup)/cpuset.cpus
"""


class Servicer(dra_pb2_grpc.DRAPluginServicer):
    def __init__(self, server: APIServer) -> None:
        self._server = server

    async def NodePrepareResources(
        self, request: api.NodePrepareResourcesRequest, context: Any
    ) -> api.NodePrepareResourcesResponse:
        return api.NodePrepareResourcesResponse(
            claims={claim.uid: await self._prepared(claim) for claim in request.claims}
        )

    async def _prepared(self, reference: api.Claim) -> api.NodePrepareResourceResponse:
        claim = await self._server.claim(Reference(reference.namespace, reference.name, reference.uid))
        results = claim["status"]["allocation"]["devices"]["results"]
        ours = [each for each in results if each["driver"] == DRIVER]
        cpus = ",".join(sorted(each["device"].removeprefix(DEVICE) for each in ours))
        variable = f"DRA_CPUSET={cpus}"
        hook = {"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", _HOOK], "env": [variable]}
        device = {"name": reference.uid, "containerEdits": {"env": [variable], "hooks": [hook]}}
        specification = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": [device]}
        _file(reference).write_text(json.dumps(specification))
        devices = [
            api.Device(request_names=[each["request"]], pool_name=each["pool"], device_name=each["device"])
            for each in ours
        ]
        devices[0].cdi_device_ids.append(f"{DRIVER}/claim={reference.uid}")
        return api.NodePrepareResourceResponse(devices=devices)

    async def NodeUnprepareResources(
        self, request: api.NodeUnprepareResourcesRequest, context: Any
    ) -> api.NodeUnprepareResourcesResponse:
        for claim in request.claims:
            _file(claim).unlink(missing_ok=True)
        return api.NodeUnprepareResourcesResponse(
            claims={claim.uid: api.NodeUnprepareResourceResponse() for claim in request.claims}
        )


def _file(claim: api.Claim) -> Path:
    return CDI / f"{DRIVER}-{claim.uid}.json"


async def _serve() -> None:
    async with APIServer.connected(None) as api_server:
        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(Servicer(api_server), server)
        registration = RegistrationServicer(
            kind="DRAPlugin", name=DRIVER, socket=_SOCKET, versions=("v1.DRAPlugin",), hear=print
        )
        registration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)
        _SOCKET.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{_SOCKET}")
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
