"""The client's end of the control socket, for `gpu-launcher ctl`."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError, StreamTerminatedError

from launcher.control.api import vm_pb2
from program.errors import Refusal

_SERVICE = vm_pb2.DESCRIPTOR.services_by_name["VirtualMachine"]
_PATIENCE = 20.0  # seconds for the first answer; the launcher gives libvirt less


def ask(path: Path, method: str, /, *, patience: float = _PATIENCE, **fields: Any) -> Any:
    """Call a method of gpu_launcher.v1.VirtualMachine with these fields of the request, and return the answer. Raise
    Refusal if no launcher serves there, it refuses, or it does not answer in `patience` seconds."""
    for answer in ask_for_all(path, method, patience=patience, **fields):
        return answer
    raise Refusal(path, f"no answer to {method}", "expected one, from gpu-launcher run")


def ask_for_all(path: Path, method: str, /, *, patience: float = _PATIENCE, **fields: Any) -> Iterator[Any]:
    """Yield each answer of a method with many, the first within `patience` seconds. Raise Refusal as ask() does."""
    answers = _answers(path, method, fields)

    async def following(seconds: float | None) -> Any:
        async with asyncio.timeout(seconds):
            return await anext(answers, None)

    seconds: float | None = patience
    with asyncio.Runner() as runner:
        try:
            while True:
                with _refusing(path, patience):
                    answer = runner.run(following(seconds))
                if answer is None:
                    return
                yield answer
                seconds = None
        finally:
            runner.run(answers.aclose())


async def _answers(path: Path, name: str, fields: Mapping[str, Any]) -> AsyncGenerator[Any]:
    method = _SERVICE.methods_by_name[name]
    cardinality = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    async with (
        Channel(path=str(path), codec=ProtoCodec()) as channel,
        channel.request(f"/{_SERVICE.full_name}/{name}", cardinality, request, answer) as stream,
    ):
        await stream.send_message(request(**fields), end=True)
        async for message in stream:
            yield message


@contextmanager
def _refusing(path: Path, patience: float) -> Iterator[None]:
    """Raise Refusal for whatever goes wrong with a call."""
    try:
        yield
    except TimeoutError as error:
        fix = "the launcher is there and hangs, its log says in what"
        raise Refusal(path, f"no answer in {patience:.0f} s", fix) from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise Refusal(
            path,
            "nobody serves there",
            "expected the control socket of a gpu-launcher run, which is there while it runs: look at its log, "
            "or name another with --socket",
        ) from error
    except PermissionError as error:
        fix = "expected to be the user that gpu-launcher run is, or root"
        raise Refusal(path, error.strerror or "", fix) from error
    except GRPCError as error:
        if error.status is Status.FAILED_PRECONDITION:
            raise Refusal("", error.message or "", "") from error  # the launcher's whole line
        raise Refusal(
            path,
            f"{error.message or 'no answer'} (gRPC status {error.status.name})",
            "expected a gpu-launcher run to serve there",
        ) from error
    except (StreamTerminatedError, OSError, AttributeError) as error:  # the last is grpclib's before the call is sent
        raise Refusal(path, "the launcher has ended before it answered, or has hung up", "its log says why") from error
    except (AssertionError, KeyError, DecodeError) as error:
        fix = "expected a gpu-launcher run to serve there"
        raise Refusal(path, "who serves there gives an answer that cannot be read", fix) from error
