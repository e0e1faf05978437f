"""gRPC's health service: whether this process answers, and whether the guest runs."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from launcher.control.api import health_pb2 as api
from launcher.control.changes import changes_of
from launcher.control.methods import methods_of
from launcher.runtime.vm import VM, Phase

#: The service that is healthy exactly while the guest runs, paused or not. The overall one, "", is about this process.
GUEST = "guest"


class Health:
    def __init__(self, vm: VM) -> None:
        self._vm = vm

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(api.DESCRIPTOR.services_by_name["Health"], self, full_name="grpc.health.v1.Health")

    async def Check(self, request: api.HealthCheckRequest) -> api.HealthCheckResponse:
        if request.service not in ("", GUEST):
            raise GRPCError(Status.NOT_FOUND, f"expected '' or {GUEST!r}")
        return _answer(request.service, self._vm.phase)

    async def Watch(self, request: api.HealthCheckRequest) -> AsyncGenerator[api.HealthCheckResponse]:
        told = None
        async with aclosing(changes_of(self._vm)) as changes:
            async for change, _ in changes:
                if (answer := _answer(request.service, change.phase)) != told:
                    yield (told := answer)


def _answer(service: str, phase: Phase) -> api.HealthCheckResponse:
    if service not in ("", GUEST):
        return api.HealthCheckResponse(status=api.HealthCheckResponse.SERVICE_UNKNOWN)
    serving = service == "" or phase is Phase.RUNNING
    status = api.HealthCheckResponse.SERVING if serving else api.HealthCheckResponse.NOT_SERVING
    return api.HealthCheckResponse(status=status)
