"""What the servers count, for metrics and health."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counters:
    """What the servers count.

    `allocations`: how many containers asked for each resource, by outcome (`given`, `refused`). `registrations`: how
    often each resource was registered. `watched`: whether the kubelet watches it now.
    """

    allocations: Counter[tuple[str, str]] = field(default_factory=Counter)
    registrations: Counter[str] = field(default_factory=Counter)
    watched: dict[str, bool] = field(default_factory=dict)
