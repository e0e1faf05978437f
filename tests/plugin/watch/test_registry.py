"""What the kubelet is told of a socket that it finds in its plugins_registry, over a real one."""

import asyncio
from pathlib import Path

import grpc

from plugin.kubelet_api.pluginregistration_v1 import registration_pb2 as api
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.watch.registry import RegistrationServicer
from plugin.watch.sockets import CHANNEL, target


def test_each_server_says_which_kind_of_plugin_it_is_and_hears_the_kubelets_answer(short_dir: Path) -> None:
    socket, answers = short_dir / "dra.sock", list[bool]()

    async def ask() -> api.PluginInfo:
        server = grpc.aio.server()
        servicer = RegistrationServicer(
            kind="DRAPlugin", name="gpu.example.com", socket=socket, versions=("v1.DRAPlugin",), hear=answers.append
        )
        registration_pb2_grpc.add_RegistrationServicer_to_server(servicer, server)
        server.add_insecure_port(target(socket))
        await server.start()
        async with grpc.aio.insecure_channel(target(socket), options=CHANNEL) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            info: api.PluginInfo = await stub.GetInfo(api.InfoRequest())
            for is_registered in (False, True):
                await stub.NotifyRegistrationStatus(api.RegistrationStatus(plugin_registered=is_registered))
        await server.stop(None)
        return info

    info = asyncio.run(ask())
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.example.com", str(socket))
    assert (list(info.supported_versions), answers) == (["v1.DRAPlugin"], [False, True])
