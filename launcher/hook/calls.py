"""The calls of KubeVirt's that are answered, a class for each of its services."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpclib.const import Handler

from launcher.control.methods import methods_of
from launcher.control.threads import Threads
from launcher.hook.annotations import read_asked
from launcher.hook.api import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2
from launcher.hook.rewrite import rewritten
from program.errors import ProgramError
from program.problem import one_line

_log = logging.getLogger(__name__)

#: What KubeVirt's log calls the sidecar by.
NAME = "gpu-launcher"
_VERSIONS: dict[str, Any] = {"v1alpha1": v1alpha1_pb2, "v1alpha2": v1alpha2_pb2, "v1alpha3": v1alpha3_pb2}

Rewrite = Callable[[bytes, bytes], bytes]


def rewriting(sysfs: Path) -> Rewrite:
    """Return the function from a domain and a VMI to the new domain, which writes into the log what it has done."""

    def rewrite(domain: bytes, vmi: bytes) -> bytes:
        try:
            answer = rewritten(domain, read_asked(vmi), sysfs)
        except ProgramError as error:
            _log.error("%s", one_line(error))
            raise
        for line in answer.cards:
            _log.info("%s", one_line(line))
        for warning in answer.warnings:
            _log.warning("%s", warning)
        if not answer.cards:
            _log.info("the domain has no cards, and stays as it is")
        return answer.xml

    return rewrite


def sidecar(rewrite: Rewrite) -> list[Any]:
    """The services of a sidecar that the annotation hooks.kubevirt.io/hookSidecars names."""
    threads = _threads()
    return [Info(), *(Callbacks(api, rewrite, threads) for api in _VERSIONS.values())]


def plugin(rewrite: Rewrite) -> list[Any]:
    """The service of a plugin (VEP 190)."""
    return [DomainHookService(rewrite, _threads())]


def _threads() -> Threads:
    return Threads("the node's /sys", "; a driver may keep the kernel waiting: gpu-plugin doctor says which")


class Info:
    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(info_pb2.DESCRIPTOR.services_by_name["Info"], self)

    async def Info(self, request: info_pb2.InfoParams) -> info_pb2.InfoResult:
        """Of PreCloudInitIso KubeVirt takes only the first sidecar's answer, so it is not asked for."""
        points = [info_pb2.HookPoint(name="OnDefineDomain", priority=0)]
        return info_pb2.InfoResult(name=NAME, versions=list(_VERSIONS), hookPoints=points)


class Callbacks:
    """Of one version, whose messages are those of `api`."""

    def __init__(self, api: Any, rewrite: Rewrite, threads: Threads) -> None:
        self._api, self._rewrite, self._threads = api, rewrite, threads

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(self._api.DESCRIPTOR.services_by_name["Callbacks"], self)

    async def OnDefineDomain(self, request: Any) -> Any:
        domain = await self._threads.run(lambda: self._rewrite(request.domainXML, request.vmi))
        return self._api.OnDefineDomainResult(domainXML=domain)

    async def PreCloudInitIso(self, request: Any) -> Any:
        return self._api.PreCloudInitIsoResult(
            cloudInitNoCloudSource=request.cloudInitNoCloudSource, cloudInitData=request.cloudInitData
        )

    async def Shutdown(self, request: Any) -> Any:
        return self._api.ShutdownResult()


class DomainHookService:
    def __init__(self, rewrite: Rewrite, threads: Threads) -> None:
        self._rewrite, self._threads = rewrite, threads

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(plugins_pb2.DESCRIPTOR.services_by_name["DomainHookService"], self)

    async def MutateDomain(self, request: plugins_pb2.MutateDomainRequest) -> plugins_pb2.MutateDomainResponse:
        """Another hypervisor's domain is returned as it is."""
        if request.domain_type not in ("", "libvirt"):
            return plugins_pb2.MutateDomainResponse(domain=request.domain)
        domain = await self._threads.run(lambda: self._rewrite(request.domain, request.vmi))
        return plugins_pb2.MutateDomainResponse(domain=domain)
