"""Asks the kubelet which pod has which device (kubernetes.io, "Monitoring device plugin resources")."""

import logging
import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import grpc

from plugin.changes.users import Assignment, CannotAsk, KubeletList, is_number
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


async def list_pods(socket: Path, at_most: float) -> KubeletList:
    """Return the node's pods, and every device of every plugin that one of them has; CannotAsk if the kubelet does not
    answer within so many seconds."""
    if not os.path.exists(socket):  # noqa: PTH110 (Path.exists raises where it may not look)
        raise CannotAsk(socket, "does not exist")
    async with grpc.aio.insecure_channel(target(socket), options=(*CHANNEL, _LONGEST_LIST)) as channel:
        kubelet = podresources_pb2_grpc.PodResourcesListerStub(channel)
        try:
            listed = await kubelet.List(api.ListPodResourcesRequest(), timeout=at_most)
        except grpc.aio.AioRpcError as error:
            raise CannotAsk(socket, error.details() or "does not answer") from error
        assignments = frozenset(
            Assignment(f"{pod.namespace}/{pod.name}", devices.resource_name, device_id)
            for pod in listed.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device_id in devices.device_ids
        )
        numbered = {each.resource for each in assignments if is_number(each.device_id)}
        ids = await _all_ids(kubelet, numbered, at_most) if numbered else {}
    pods = frozenset(f"{pod.namespace}/{pod.name}" for pod in listed.pod_resources)
    return KubeletList(pods=pods, assignments=assignments, ids=ids)


async def _all_ids(
    kubelet: podresources_pb2_grpc.PodResourcesListerStub, resources: Collection[str], at_most: float
) -> Mapping[str, frozenset[str]]:
    """Return all IDs of these resources; none if the kubelet does not tell them, as before Kubernetes 1.28 by default
    (KubeletPodResourcesGetAllocatable)."""
    try:
        allocatable = await kubelet.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=at_most)
    except grpc.aio.AioRpcError as error:
        _log.debug("which IDs a resource has is not known: %s", error.details())
        return {}
    ids: dict[str, set[str]] = defaultdict(set)
    for devices in allocatable.devices:
        if devices.resource_name in resources:
            ids[devices.resource_name].update(devices.device_ids)
    return {resource: frozenset(each) for resource, each in ids.items() if each}


class Pods:
    """Asks the kubelet which pods have which devices, and tells the watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._silence = Trouble(_log, logging.WARNING, "what other plugins gave out is not seen")

    async def ask(self, at_most: float = 10.0) -> bool:
        """Ask within so many seconds; return whether the kubelet answered."""
        watch = self._watch
        try:
            listed = await list_pods(watch.sources.pod_resources, at_most)
        except CannotAsk as error:
            self._silence.tell(error)
            watch.see(replace(watch.snapshot, sees_pods=False))
            return False
        watch.see(watch.snapshot.with_pods(listed))
        self._silence.tell(None)
        return True
