"""What a gRPC server answers, as values: from a service's description and the functions for its methods."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


class Call:
    """A call in progress, as the function that answers it may know it: whether its caller still waits."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._over = False
        self._then: list[Callable[[], None]] = []

    def when_over(self, then: Callable[[], None]) -> None:
        """Have this called, in another thread, when the caller is gone; at once where it is gone already.

        It must not wait: the other calls of that connection would.
        """
        with self._lock:
            if not self._over:
                self._then.append(then)
                return
        then()

    def end(self) -> None:
        """The caller is gone."""
        with self._lock:
            self._over, then = True, self._then
            self._then = []
        for what in then:
            what()


#: From a request to the answers: one, or as many as there are in a stream.
Answer = Callable[[Any, Call], Iterable[Message]]


@dataclass(frozen=True)
class Method:
    request: type[Message]
    answer: Answer


def methods_of(
    service: ServiceDescriptor, answers: Mapping[str, Answer], full_name: str | None = None
) -> dict[str, Method]:
    """The service's methods by their path on the wire. `full_name` is the service's, where it is not as described.

    LookupError where the service has no such method; a method without an answer is not served.
    """
    described = {method.name: method for method in service.methods}
    return {
        f"/{full_name or service.full_name}/{name}": Method(GetMessageClass(described[name].input_type), answer)
        for name, answer in answers.items()
    }


def one(answer: Callable[[Any], Message]) -> Answer:
    """A function from a request to its one answer."""
    return lambda request, call: (answer(request),)
