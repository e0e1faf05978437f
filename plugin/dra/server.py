"""The servers of the kubelet's DRA API: claims are prepared and unprepared, and the devices' health is streamed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import grpc

from pci.slices import DRIVER
from plugin.dra.apiserver import NotFound, Unanswered
from plugin.dra.cdi import device_id
from plugin.dra.claims import Reference
from plugin.dra.preparation import Claims
from plugin.dra.slices import device_name
from plugin.dra.status import Statuses, of_devices, of_error
from plugin.kubelet_api.dra_health_v1 import health_pb2, health_pb2_grpc
from plugin.kubelet_api.dra_v1 import dra_pb2 as api
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from plugin.watch.registry import Context
from plugin.watch.watch import Counters, Watch
from program.errors import ProgramError

_log = logging.getLogger(__name__)

#: The services on the driver's socket, as a registration names them.
VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

#: Seconds for which the kubelet trusts a device's health; it is sent again in half that time.
_HEALTH_HOLDS = 60


class DRAServicer(dra_pb2_grpc.DRAPluginServicer):
    """Prepares and unprepares claims. The answer has, for every claim, its devices or an error."""

    def __init__(self, claims: Claims, statuses: Statuses, node: str, counters: Counters) -> None:
        self._claims = claims
        self._statuses = statuses
        self._node = node
        self._counts = counters.allocations

    async def NodePrepareResources(
        self, request: api.NodePrepareResourcesRequest, context: Context
    ) -> api.NodePrepareResourcesResponse:
        # All claims at once, since the kubelet's deadline is for all together.
        answers = await asyncio.gather(*(self._prepare(_reference(claim)) for claim in request.claims))
        return api.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def _prepare(self, reference: Reference) -> api.NodePrepareResourceResponse:
        try:
            devices = await self._claims.prepare(reference)
        except ProgramError as error:
            self._counts[DRIVER, "refused"] += 1
            if not isinstance(error, NotFound | Unanswered):
                self._statuses.write_soon(reference, of_error(error))
            _log.error("refused to prepare: %s", error, extra={"claim": str(reference)})
            return api.NodePrepareResourceResponse(error=str(error))
        except Exception as defect:
            _log.exception("claim %s was not prepared", reference)
            return api.NodePrepareResourceResponse(error=f"claim {reference}: {type(defect).__name__}, see the log")
        self._counts[DRIVER, "given"] += 1
        self._statuses.write_soon(reference, of_devices(devices, "Prepared"))
        first = {device.request: device for device in reversed(devices)}
        return api.NodePrepareResourceResponse(
            devices=[
                api.Device(
                    request_names=[device.request],
                    pool_name=self._node,
                    device_name=device.name,
                    # One for all devices of the request: the mounts of an ID named twice would be made twice.
                    cdi_device_ids=(
                        [device_id(reference.uid, device.request)] if first[device.request] is device else []
                    ),
                )
                for device in devices
            ]
        )

    async def NodeUnprepareResources(
        self, request: api.NodeUnprepareResourcesRequest, context: Context
    ) -> api.NodeUnprepareResourcesResponse:
        answers = await asyncio.gather(*(self._unprepare(_reference(claim)) for claim in request.claims))
        return api.NodeUnprepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def _unprepare(self, reference: Reference) -> api.NodeUnprepareResourceResponse:
        try:
            await self._claims.unprepare(reference)
        except ProgramError as error:
            _log.error("could not unprepare: %s", error, extra={"claim": str(reference)})
            return api.NodeUnprepareResourceResponse(error=str(error))
        except Exception as defect:
            _log.exception("claim %s was not unprepared", reference)
            return api.NodeUnprepareResourceResponse(error=f"claim {reference}: {type(defect).__name__}, see the log")
        return api.NodeUnprepareResourceResponse()


class HealthServicer(health_pb2_grpc.DRAResourceHealthServicer):
    """Tells the kubelet which devices are healthy; the kubelet writes that into the status of their pods."""

    def __init__(self, watch: Watch, node: str) -> None:
        self._watch = watch
        self._node = node

    async def NodeWatchResources(
        self, request: health_pb2.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        """Send the health of all devices at every change, and again before the last message is out of date."""
        self._watch.counters.streams[DRIVER] += 1
        while not self._watch.stopped:
            change = self._watch.next_change
            yield self._response()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEALTH_HOLDS / 2):
                    await change.wait()

    def _response(self) -> health_pb2.NodeWatchResourcesResponse:
        snapshot, now = self._watch.snapshot, int(time.time())
        devices = []
        named = [(device_name(device), device) for device in snapshot.inventory.published]
        # A vGPU that is not made yet has no trouble.
        vgpus = {name: snapshot.inventory.by_id.get(device) for device, name in snapshot.claimable_names.items()}
        named += [(name, device) for name, device in vgpus.items() if device is not None]
        for name, device in named:
            # A pod that has a card out of service keeps it.
            reason = snapshot.trouble(device)
            devices.append(
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name=self._node, device_name=name),
                    health=health_pb2.HEALTHY if reason is None else health_pb2.UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=_HEALTH_HOLDS,
                    message="" if reason is None else f"it {reason}",
                )
            )
        return health_pb2.NodeWatchResourcesResponse(devices=devices)


def serve_health(servicer: HealthServicer, server: grpc.aio.Server) -> None:
    """Add both versions of the service, which are the same on the wire: kubelets before 1.37 know v1alpha1 alone."""
    health_pb2_grpc.add_DRAResourceHealthServicer_to_server(servicer, server)
    watch = grpc.unary_stream_rpc_method_handler(
        servicer.NodeWatchResources,
        request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
        response_serializer=health_pb2.NodeWatchResourcesResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1alpha1.DRAResourceHealth", {"NodeWatchResources": watch})]
    )


def _reference(claim: api.Claim) -> Reference:
    return Reference(claim.namespace, claim.name, claim.uid)
