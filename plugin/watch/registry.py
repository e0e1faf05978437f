"""What a server answers the kubelet that found its socket in plugins_registry."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from plugin.kubelet_api.pluginregistration_v1 import registration_pb2 as api
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc

if TYPE_CHECKING:
    import grpc

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs only


class RegistrationServicer(registration_pb2_grpc.RegistrationServicer):
    """Answers for one server: its `kind` (`DevicePlugin`, `DRAPlugin`: k8s.io/kubelet, pluginregistration/v1,
    constants.go), its name among those, its socket and the versions of its API that it speaks.

    `hear` is called with the kubelet's yes or no.
    """

    def __init__(
        self, *, kind: str, name: str, socket: Path, versions: tuple[str, ...], hear: Callable[[bool], None]
    ) -> None:
        self._info = api.PluginInfo(type=kind, name=name, endpoint=str(socket), supported_versions=versions)
        self._hear = hear

    async def GetInfo(self, request: api.InfoRequest, context: Context) -> api.PluginInfo:
        return self._info

    async def NotifyRegistrationStatus(
        self, request: api.RegistrationStatus, context: Context
    ) -> api.RegistrationStatusResponse:
        if not request.plugin_registered:
            _log.warning("%s: the kubelet refused the registration: %s", self._info.name, request.error)
        self._hear(request.plugin_registered)
        return api.RegistrationStatusResponse()
