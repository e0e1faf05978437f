"""The calls of KubeVirt that the hook answers, a class for each of its services."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread
from typing import Any

from grpclib.const import Handler

from launcher.control.threads import Threads
from launcher.hook.api import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2
from launcher.hook.methods import methods_of
from program.errors import ProgramError
from program.problem import one_line

_log = logging.getLogger(__name__)

#: KubeVirt's log calls the sidecar this.
NAME = "gpu-launcher"
_VERSIONS: dict[str, Any] = {"v1alpha1": v1alpha1_pb2, "v1alpha2": v1alpha2_pb2, "v1alpha3": v1alpha3_pb2}

_UNTIL_SENT = 0.05  # seconds, in which the answer to Info is on its way

#: From a domain and its VMI to the new domain.
Rewrite = Callable[[bytes, bytes], Awaitable[bytes]]


def services(sysfs: Path, *, is_plugin: bool) -> list[Any]:
    """Return the services of a plugin (VEP 190), or of a sidecar that the annotation hooks.kubevirt.io/hookSidecars
    names. `sysfs` stands for the node's /sys."""
    threads = Threads("the node's /sys", "a driver may keep the kernel waiting: gpu-plugin doctor says which")

    async def rewrite(domain: bytes, vmi: bytes) -> bytes:
        return await threads.run(lambda: _logged(domain, vmi, sysfs))

    if is_plugin:  # KubeVirt asks no Info of it
        Thread(target=_load, daemon=True).start()
        return [DomainHookService(rewrite)]
    return [Info(), *(Callbacks(api, rewrite) for api in _VERSIONS.values())]


def _load() -> None:
    """Import what only OnDefineDomain needs. KubeVirt's launcher waits for Info before it starts libvirt: imports
    before that answer delay the guest, imports while libvirt starts do not."""
    import launcher.hook.rewrite  # noqa: F401


def _logged(domain: bytes, vmi: bytes, sysfs: Path) -> bytes:
    """Return the new domain, and log what was changed."""
    from launcher.hook.kubevirt_domain import read_vmi
    from launcher.hook.rewrite import rewritten

    try:
        answer = rewritten(domain, read_vmi(vmi), sysfs)
    except ProgramError as error:
        _log.error("%s", one_line(error))
        raise
    for line in answer.cards or ("the domain has no cards, and stays as it is",):
        _log.info("%s", one_line(line))
    for warning in answer.warnings:
        _log.warning("%s", warning)
    return answer.xml


class Info:
    """The service Info. KubeVirt waits a second for the answer, or gives the VM up: nothing else runs until then."""

    def __init__(self) -> None:
        self._is_loading = False

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(info_pb2.DESCRIPTOR.services_by_name["Info"], self)

    async def Info(self, request: info_pb2.InfoParams) -> info_pb2.InfoResult:
        """Ask for OnDefineDomain alone: of PreCloudInitIso, KubeVirt takes only the first sidecar's answer."""
        if not self._is_loading:
            self._is_loading = True
            load = Thread(target=_load, daemon=True)
            asyncio.get_running_loop().call_later(_UNTIL_SENT, load.start)
        points = [info_pb2.HookPoint(name="OnDefineDomain", priority=0)]
        return info_pb2.InfoResult(name=NAME, versions=list(_VERSIONS), hookPoints=points)


class Callbacks:
    """The service of one version, with the messages of `api`."""

    def __init__(self, api: Any, rewrite: Rewrite) -> None:
        self._api, self._rewrite = api, rewrite

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(self._api.DESCRIPTOR.services_by_name["Callbacks"], self)

    async def OnDefineDomain(self, request: Any) -> Any:
        return self._api.OnDefineDomainResult(domainXML=await self._rewrite(request.domainXML, request.vmi))

    async def PreCloudInitIso(self, request: Any) -> Any:
        return self._api.PreCloudInitIsoResult(
            cloudInitNoCloudSource=request.cloudInitNoCloudSource, cloudInitData=request.cloudInitData
        )

    async def Shutdown(self, request: Any) -> Any:
        return self._api.ShutdownResult()


class DomainHookService:
    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(plugins_pb2.DESCRIPTOR.services_by_name["DomainHookService"], self)

    async def MutateDomain(self, request: plugins_pb2.MutateDomainRequest) -> plugins_pb2.MutateDomainResponse:
        """Return the new domain; another hypervisor's unchanged."""
        is_ours = request.domain_type in ("", "libvirt")
        domain = await self._rewrite(request.domain, request.vmi) if is_ours else request.domain
        return plugins_pb2.MutateDomainResponse(domain=domain)
