"""spec.livenessProbe and spec.readinessProbe: what the kubelet asks of the guest, through the pod's container."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from launcher.fields.objects import Below, Items, Object
from launcher.fields.scalars import Matching, Text
from launcher.vm.network.manifest import Interface
from program.errors import Nonsense
from program.problem import excerpt

_LAST_PORT = 65535
#: Kubernetes' IANA_SVC_NAME (apimachinery's pkg/util/validation, IsValidPortName).
_PORT_NAME = re.compile("(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_KINDS = ("httpGet", "tcpSocket", "exec", "guestAgentPing")


def _port(value: Any) -> int | str:
    if isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LAST_PORT:
        return value
    raise Nonsense(
        f"found {excerpt(value)}",
        f"expected a number from 1 to {_LAST_PORT}, without quotes, or the name of one of the interfaces' ports",
    )


#: Kubernetes' int32, with room for what the pod's own adds.
ProbeCount = Annotated[int, Field(ge=0, lt=2**31 - 60)]
ProbePort = Annotated[int | str, PlainValidator(_port, json_schema_input_type=int | str)]


class HTTPHeader(Object):
    name: Annotated[Text, Matching("[-A-Za-z0-9]+", "is no HTTP header", "expected letters, digits and -")]
    value: Text


class HTTPGet(Object):
    """Answered with a status from 200 to 399. Without a host it is asked of the pod's address, as KubeVirt's."""

    port: ProbePort
    path: Text | None = None
    host: Text | None = None
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    httpHeaders: Items[HTTPHeader] = ()


class TCPSocket(Object):
    """A port that takes connections."""

    port: ProbePort
    host: Text | None = None


class Exec(Object):
    """A program of the guest's and its arguments, without a shell; it has to end with 0."""

    command: Items[Text]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.command:
            raise Below("command", "is empty", "expected a program of the guest's, and its arguments")
        return self


class GuestAgentPing(Object):
    pass


class Probe(Object):
    """One question, and how often it is asked. A number of 0 is Kubernetes' default (KubeVirt's SetDefaults_Probe)."""

    httpGet: HTTPGet | None = None
    tcpSocket: TCPSocket | None = None
    exec: Exec | None = None
    guestAgentPing: GuestAgentPing | None = None
    initialDelaySeconds: ProbeCount = 0
    timeoutSeconds: ProbeCount = 0
    periodSeconds: ProbeCount = 0
    successThreshold: ProbeCount = 0
    failureThreshold: ProbeCount = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        kinds = self.present_fields(*_KINDS)
        if not kinds:
            raise Nonsense("asks nothing", f"expected one of {', '.join(_KINDS)}")
        if len(kinds) > 1:
            raise Nonsense(f"has both {kinds[0]} and {kinds[1]}", "expected one of them")
        return self

    @property
    def knocks(self) -> HTTPGet | TCPSocket | None:
        """The request to a port; None for a probe that the guest's agent answers."""
        return self.httpGet or self.tcpSocket


class LivenessProbe(Probe):
    @model_validator(mode="after")
    def _check_threshold(self) -> Self:
        if self.successThreshold > 1:
            raise Below("successThreshold", str(self.successThreshold), "expected 1, as Kubernetes does for liveness")
        return self


def port_named(name: str, interfaces: tuple[Interface, ...]) -> int | None:
    """Return the number of the interfaces' port of that name, None where there is none."""
    return next((port.port for interface in interfaces for port in interface.ports if port.name == name), None)


def check_ports(probe: Probe | None, name: str, interfaces: tuple[Interface, ...]) -> None:
    """Raise Nonsense for a port of a guest without an interface on the pod's network, or whose name no port has.

    `interfaces` are those on the pod's network; `name` is the probe's in the manifest.
    """
    if probe is None or probe.knocks is None:
        return
    path = f"{name}.{'httpGet' if probe.httpGet is not None else 'tcpSocket'}"
    if not interfaces:
        raise Below(path, "the guest has no interface on the pod's network", "add one, or ask by exec")
    port = probe.knocks.port
    if isinstance(port, str) and port_named(port, interfaces) is None:
        raise Below(
            f"{path}.port", f"no interface has a port called {port!r}", "name one in its ports, or write a number"
        )
