"""KubeVirt's services, kubevirt.cmd.v1.Cmd and kubevirt.cmd.info.CmdInfo: of the VM that runs here, and of no other.

Where it answers otherwise than KubeVirt's launcher, and what it does not do: docs/decisions/0025.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from launcher.control.api import cmd_pb2 as api
from launcher.control.api import info_pb2
from launcher.control.domain_json import domain_json, statistics_json
from launcher.control.methods import Answer, Method, methods_of, one
from launcher.errors import LauncherError, Refusal
from launcher.running import operations
from launcher.running.vm import VM, Identity, Phase, StopRequested
from program.problem import one_line

_log = logging.getLogger(__name__)


def kubevirt(vm: VM) -> dict[str, Method]:
    cmd = api.DESCRIPTOR.services_by_name["Cmd"]
    declined = {method.name: one(_declining(method)) for method in cmd.methods}
    info = info_pb2.DESCRIPTOR.services_by_name["CmdInfo"]
    return methods_of(cmd, declined | _answers(vm)) | methods_of(info, {"Info": one(_info)})


def _answers(vm: VM) -> dict[str, Answer]:
    def told(words: str, do: Callable[[], None]) -> Answer:
        """Do it to the VM that the request names, and log that somebody wanted it."""

        def answer(request: api.VMIRequest) -> api.Response:
            _refuse_another(vm.identity, request.vmi.vmiJson)
            do()
            _log.info("%s has been %s over the control socket", vm.identity, words)
            return api.Response(success=True)

        return one(_response(answer))

    def sync(request: api.VMIRequest) -> api.Response:
        _refuse_another(vm.identity, request.vmi.vmiJson)
        return api.Response(success=True)

    def delete(request: api.VMIRequest) -> api.Response:
        _refuse_another(vm.identity, request.vmi.vmiJson)
        if vm.phase is not Phase.ENDED:
            raise Refusal(
                f"{vm.identity} is {vm.phase.value}, and its definition goes when it ends; "
                "ShutdownVirtualMachine or KillVirtualMachine ends it"
            )
        return api.Response(success=True)

    def domain(request: api.EmptyRequest) -> api.DomainResponse:
        if vm.phase in (Phase.PREPARING, Phase.ENDED):  # as KubeVirt's without a domain
            return api.DomainResponse(response=api.Response(success=True))
        if vm.phase is Phase.STARTING:  # libvirt may keep whoever asks waiting
            found = domain_json(vm.identity, operations.State("paused", "starting up"), None)
        else:
            defined = vm.domain()
            found = domain_json(vm.identity, operations.state(defined), operations.xml(defined))
        return api.DomainResponse(response=api.Response(success=True), domain=json.dumps(found))

    def statistics(request: api.EmptyRequest) -> api.DomainStatsResponse:
        if vm.phase not in (Phase.RUNNING, Phase.STOPPING):
            return api.DomainStatsResponse(response=api.Response(success=True))
        found = statistics_json(operations.statistics(vm.domain()))
        return api.DomainStatsResponse(response=api.Response(success=True), domainStats=json.dumps(found))

    def version(request: api.EmptyRequest) -> api.QemuVersionResponse:
        major, minor, release = operations.hypervisor_version(vm.domain())
        return api.QemuVersionResponse(response=api.Response(success=True), version=f"QEMU {major}.{minor}.{release}")

    return {
        "Ping": one(lambda request: api.Response(success=True)),
        "SyncVirtualMachine": one(_response(sync)),
        "PauseVirtualMachine": told("paused", lambda: operations.pause(vm.domain())),
        "UnpauseVirtualMachine": told("resumed", lambda: operations.resume(vm.domain())),
        "ResetVirtualMachine": told("reset", lambda: operations.reset(vm.domain())),
        "ShutdownVirtualMachine": told("asked to shut down", lambda: vm.request(StopRequested.SHUTDOWN)),
        "KillVirtualMachine": told("told to end at once", lambda: vm.request(StopRequested.KILL)),
        "DeleteVirtualMachine": one(_response(delete)),
        "GetDomain": one(_in_response(api.DomainResponse, domain)),
        "GetDomainStats": one(_in_response(api.DomainStatsResponse, statistics)),
        "GetQemuVersion": one(_in_response(api.QemuVersionResponse, version)),
    }


def _info(request: info_pb2.CmdInfoRequest) -> info_pb2.CmdInfoResponse:
    return info_pb2.CmdInfoResponse(supportedCmdVersions=["1"])


def _response(answer: Callable[[Any], api.Response]) -> Callable[[Any], api.Response]:
    """The protocol's way to fail: an answer that says so."""

    def answered(request: Any) -> api.Response:
        try:
            return answer(request)
        except LauncherError as error:
            return api.Response(success=False, message=one_line(error))

    return answered


def _in_response(kind: type[Any], answer: Callable[[Any], Message]) -> Callable[[Any], Message]:
    """The same, where the Response is a part of the answer."""

    def answered(request: Any) -> Message:
        try:
            return answer(request)
        except LauncherError as error:
            failed: Message = kind(response=api.Response(success=False, message=one_line(error)))
            return failed

    return answered


def _declining(method: MethodDescriptor) -> Callable[[Any], Message]:
    response = api.Response(success=False, message=f"gpu-launcher does not do {method.name}")
    kind = GetMessageClass(method.output_type)
    answer = response if kind is api.Response else kind(response=response)
    return lambda request: answer


def _refuse_another(ours: Identity, vmi: bytes) -> None:
    """Refusal where this is the JSON of another VirtualMachineInstance, or of none. Without any, ours is meant."""
    if not vmi:
        return
    try:
        metadata = json.loads(vmi)["metadata"]
        theirs = Identity(metadata.get("namespace") or "default", metadata["name"], metadata.get("uid") or "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal("the request's vmiJson is no VirtualMachineInstance; expected JSON with metadata.name") from error
    if (theirs.namespace, theirs.name) != (ours.namespace, ours.name) or "" != theirs.uid != ours.uid != "":
        raise Refusal(f"this launcher runs {_named(ours)}, and the request is for {_named(theirs)}")


def _named(vm: Identity) -> str:
    return f"{vm} of uid {vm.uid}" if vm.uid else str(vm)
