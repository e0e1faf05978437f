"""Asks the kubelet which pod has which device (kubernetes.io, "Monitoring device plugin resources")."""

import os
from pathlib import Path
from urllib.parse import quote

import grpc

from plugin.cards.holders import Use
from plugin.kubelet_api.podresources_v1 import podresources_pb2 as api
from plugin.kubelet_api.podresources_v1 import podresources_pb2_grpc

#: As the kubelet's own client has it; a node of many pods has more than gRPC's 4 MiB.
_LONGEST_LIST = ("grpc.max_receive_message_length", 16 << 20)


class CannotAsk(Exception):
    """The kubelet does not answer; carries why."""


async def uses(socket: Path, at_most: float) -> frozenset[Use]:
    """Every device that a pod of this node has, of every plugin; CannotAsk where the kubelet does not say within so
    many seconds."""
    if not os.path.exists(socket):  # noqa: PTH110 (Path.exists raises where it may not look)
        raise CannotAsk(f"{socket} does not exist")
    # Go's gRPC servers refuse the encoded path that a unix: target would make the authority.
    options = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0), _LONGEST_LIST)
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=options) as channel:
        try:
            listed = await podresources_pb2_grpc.PodResourcesListerStub(channel).List(
                api.ListPodResourcesRequest(), timeout=at_most
            )
        except grpc.aio.AioRpcError as error:
            raise CannotAsk(f"{socket}: {error.details()}") from error
    return frozenset(
        Use(f"{pod.namespace}/{pod.name}", devices.resource_name, device_id)
        for pod in listed.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device_id in devices.device_ids
    )
