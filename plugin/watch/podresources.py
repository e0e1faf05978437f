"""Asks the kubelet which pod has which device (kubernetes.io, "Monitoring device plugin resources")."""

import logging
import os
from pathlib import Path

import grpc

from plugin.cards.holders import Assignment, CannotAsk, Listed
from plugin.kubelet_api.podresources_v1 import podresources_pb2 as api
from plugin.kubelet_api.podresources_v1 import podresources_pb2_grpc
from plugin.watch.sockets import CHANNEL, target
from plugin.watch.watch import Watch
from program.trouble import Trouble

_log = logging.getLogger(__name__)

#: Seconds for an answer without which a device could be offered that another plugin gave out.
WORTH_WAITING = 2.0

#: As the kubelet's own client has it; a node of many pods has more than gRPC's 4 MiB.
_LONGEST_LIST = ("grpc.max_receive_message_length", 16 << 20)


async def assignments(socket: Path, at_most: float) -> frozenset[Assignment]:
    """Return every device that a pod of this node has, of every plugin; CannotAsk if the kubelet does not say within so
    many seconds."""
    return (await list_pods(socket, at_most)).assignments


async def list_pods(socket: Path, at_most: float) -> Listed:
    """The same, and the pods that have none."""
    if not os.path.exists(socket):  # noqa: PTH110 (Path.exists raises where it may not look)
        raise CannotAsk(socket, "does not exist")
    async with grpc.aio.insecure_channel(target(socket), options=(*CHANNEL, _LONGEST_LIST)) as channel:
        try:
            listed = await podresources_pb2_grpc.PodResourcesListerStub(channel).List(
                api.ListPodResourcesRequest(), timeout=at_most
            )
        except grpc.aio.AioRpcError as error:
            raise CannotAsk(socket, error.details() or "does not answer") from error
    return Listed(
        pods=frozenset(f"{pod.namespace}/{pod.name}" for pod in listed.pod_resources),
        assignments=frozenset(
            Assignment(f"{pod.namespace}/{pod.name}", devices.resource_name, device_id)
            for pod in listed.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device_id in devices.device_ids
        ),
    )


class Pods:
    """Asks the kubelet who has what, and tells the watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._silence = Trouble(_log, logging.WARNING, "what other plugins gave out is not seen")

    async def ask(self, at_most: float = 10.0) -> bool:
        """Ask within so many seconds; return whether the kubelet said who has what."""
        try:
            self._watch.hear(await assignments(self._watch.sources.pod_resources, at_most))
        except CannotAsk as error:
            self._silence.tell(error)
            self._watch.hear_nothing()
            return False
        self._silence.tell(None)
        return True
