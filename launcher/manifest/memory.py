"""spec.domain.memory and spec.domain.resources."""

from collections.abc import Mapping
from types import MappingProxyType

from launcher.manifest.scalars import Quantity
from launcher.model import model

_NOTHING: Mapping[str, int] = MappingProxyType({})


@model
class Hugepages:
    pageSize: Quantity


@model
class Memory:
    guest: Quantity | None = None
    maxGuest: Quantity | None = None
    hugepages: Hugepages | None = None


@model
class Resources:
    """By resource name; the guest's size comes from `cpu` and `memory`, the rest is between the pod and its node."""

    requests: Mapping[str, Quantity] = _NOTHING
    limits: Mapping[str, Quantity] = _NOTHING
    overcommitGuestOverhead: bool = False
