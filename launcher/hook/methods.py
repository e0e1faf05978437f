"""A service of a .proto file for grpclib: the function of a method's name answers it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from program.errors import ProgramError

_log = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds for a caller to send its request, or to take the one answer

_Stream = Stream[Any, Any]


def methods_of(service: ServiceDescriptor, answers: object) -> dict[str, Handler]:
    """Return the service's methods by their path on the wire. `answers` has a coroutine function for each, from the
    request to the answer; an exception becomes the call's status.
    """
    return {
        (path := f"/{service.full_name}/{method.name}"): _handler(path, method, getattr(answers, method.name))
        for method in service.methods
    }


def _handler(path: str, method: MethodDescriptor, answer: Callable[[Any], Any]) -> Handler:
    types = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return Handler(partial(_answer_one, path, answer), Cardinality.UNARY_UNARY, *types)


async def _answer_one(path: str, answer: Callable[[Any], Awaitable[Message]], stream: _Stream) -> None:
    with _status_of_errors(path):
        message = await answer(await _request(stream))
        async with asyncio.timeout(_PATIENCE):
            await stream.send_message(message)


async def _request(stream: _Stream) -> Any:
    """Receive the request's message; GRPCError if there is none, more than one, or only a part of one."""
    async with asyncio.timeout(_PATIENCE):
        try:
            request = await stream.recv_message()
            if request is not None and await stream.recv_message() is None:
                return request
        except NotImplementedError as error:
            raise GRPCError(
                Status.UNIMPLEMENTED, "the request is compressed; expected grpc-encoding identity"
            ) from error
        except (AssertionError, DecodeError):  # cut off; not of this type
            pass
    raise GRPCError(Status.INVALID_ARGUMENT, "expected one whole message of the method's type")


@contextmanager
def _status_of_errors(path: str) -> Iterator[None]:
    """Turn an exception into the call's status."""
    try:
        yield
    except GRPCError:
        raise
    except ProgramError as error:
        raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
    except TimeoutError as error:
        raise GRPCError(Status.DEADLINE_EXCEEDED, f"the caller keeps {path} waiting") from error
    except Exception as error:
        _log.exception("%s failed", path)
        raise GRPCError(Status.INTERNAL, f"{path} failed; the hook's log says how") from error
