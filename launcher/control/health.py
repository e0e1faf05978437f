"""gRPC's health service: whether this process answers, and whether the guest runs."""

from collections.abc import Iterator

from launcher.control.api import health_pb2 as api
from launcher.control.messages import RPCError, Status
from launcher.control.methods import Call, Method, methods_of, one
from launcher.running.vm import VM, Phase

#: The service that is healthy exactly while the guest runs, paused or not. The overall one, "", is about this process.
GUEST = "guest"


def health(vm: VM) -> dict[str, Method]:
    def check(request: api.HealthCheckRequest) -> api.HealthCheckResponse:
        if request.service not in ("", GUEST):
            raise RPCError(Status.NOT_FOUND, f"expected '' or {GUEST!r}")
        return _answer(request.service, vm.phase)

    def watch(request: api.HealthCheckRequest, call: Call) -> Iterator[api.HealthCheckResponse]:
        with vm.changes() as changes:
            call.when_over(changes.close)
            told = None
            for change in changes:
                if (answer := _answer(request.service, change.phase)) != told:
                    yield (told := answer)

    answers = {"Check": one(check), "Watch": watch}
    return methods_of(api.DESCRIPTOR.services_by_name["Health"], answers, full_name="grpc.health.v1.Health")


def _answer(service: str, phase: Phase) -> api.HealthCheckResponse:
    if service not in ("", GUEST):
        return api.HealthCheckResponse(status=api.HealthCheckResponse.SERVICE_UNKNOWN)
    serving = service == "" or phase is Phase.RUNNING
    status = api.HealthCheckResponse.SERVING if serving else api.HealthCheckResponse.NOT_SERVING
    return api.HealthCheckResponse(status=status)
