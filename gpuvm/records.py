"""Records of VMs: the ConfigMap that `gpu-launcher pod` prints beside a pod. It outlives the pod, and has what is
needed to make the pod again.

Like any object, a record may be hostile: its manifest goes to `gpu-launcher pod`, which checks it, and only flags that
a record may have are accepted.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpuvm.objects import FLAGS_FILE, MANIFEST_FILE, STOPPED, SUSPENDED, ConfigMap, VMObject
from program.errors import Refusal

#: The flags of `gpu-launcher pod` that it writes into a record (launcher/commands/pod.py): none names a file.
_FLAG = re.compile(
    r"--(image|as|replicas|max-unavailable|block-volume|node-devices|level|pass-annotation|metrics|allow-host|bars|kernel"
    r"|log-format|log-level)=[!-~]+|--apparmor|--no-datavolumes"
)
_LEVELS = ("privileged", "baseline", "restricted")  # each stricter than the one before


class Record(NamedTuple):
    """A VM's record. `flags` are those of `gpu-launcher pod`."""

    config_map: ConfigMap
    manifest: str
    flags: tuple[str, ...]

    def flags_at(self, enforced: str) -> list[str]:
        """Return the flags for a namespace that enforces a level of Pod Security; "" for none."""
        levels = [flag.removeprefix("--level=") for flag in self.flags if flag.startswith("--level=")]
        level = max((each for each in (*levels, enforced) if each in _LEVELS), key=_LEVELS.index, default=_LEVELS[0])
        others = [flag for flag in self.flags if not flag.startswith("--level=")]
        return [*others, *([] if level == _LEVELS[0] else [f"--level={level}"])]


def is_record(config_map: ConfigMap) -> bool:
    return MANIFEST_FILE in config_map.data


def records_in(objects: Iterable[VMObject | ConfigMap]) -> list[ConfigMap]:
    return [each for each in objects if isinstance(each, ConfigMap) and is_record(each)]


def was_stopped(config_map: ConfigMap) -> bool:
    """Return whether `kubectl gpuvm stop` has stopped the record's VM."""
    return STOPPED in config_map.metadata.annotations


def suspended_to(config_map: ConfigMap) -> str:
    """Return the claim with the VM's memory if `kubectl gpuvm suspend` has suspended it; "" if not."""
    return config_map.metadata.annotations.get(SUSPENDED, "")


def record_of(config_map: ConfigMap) -> Record:
    """Return a ConfigMap as a VM's record. Refusal for flags that no record may have."""
    flags = tuple(config_map.data.get(FLAGS_FILE, "").splitlines())
    if strange := [flag for flag in flags if not _FLAG.fullmatch(flag)]:
        wrong = f"has {strange[0]!r} among the flags of its pod, which gpu-launcher does not write there"
        raise Refusal(f"ConfigMap {config_map.name}", wrong, "`kubectl gpuvm apply -f vm.yaml` makes it anew")
    return Record(config_map, config_map.data[MANIFEST_FILE], flags)


def current(config_maps: Iterable[ConfigMap], objects: Collection[VMObject]) -> dict[tuple[str, str], ConfigMap]:
    """Return each VM's record by namespace and VM: the one that its pod or controller uses, else the newest."""
    used = {(each.metadata.namespace, each.spec.manifest_name) for each in objects}
    ordered = sorted(
        records_in(config_maps),
        key=lambda each: ((each.metadata.namespace, each.name) in used, each.metadata.creation_timestamp, each.name),
    )
    return {(each.metadata.namespace, each.vm): each for each in ordered}
