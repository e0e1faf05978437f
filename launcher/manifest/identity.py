"""A VM's namespace and name if its manifest leaves them open: those of its pod, or a flag's.

A guest's UUID and MAC addresses follow from both. All replicas of a controller run one manifest, each in a pod with a
name of its own; and a manifest without a namespace may be applied in any.
"""

from collections.abc import Mapping
from typing import NamedTuple

from program.document import JSONObject
from program.errors import UserError

#: The pod's variables with its namespace, and with the VM's name there.
NAMESPACE, NAME = "GPU_LAUNCHER_NAMESPACE", "GPU_LAUNCHER_NAME"
#: The pod's variable with the name of its node.
NODE = "GPU_LAUNCHER_NODE"
_FLAG = "--namespace"


class Known(NamedTuple):
    """Facts about a VM from outside the manifest; None if unknown. `origin`: the flag or variable that gives the
    namespace.

    `suffix`: the end of the name of a VM that has only a generateName.
    """

    namespace: str | None = None
    name: str | None = None
    origin: str = _FLAG
    suffix: str = ""


def known_in(environ: Mapping[str, str], namespace: str | None) -> Known:
    """Return the namespace of --namespace, or of the variables of the VM's pod; the name is the pod's."""
    name = environ.get(NAME) or None
    return Known(namespace, name) if namespace else Known(environ.get(NAMESPACE) or None, name, NAMESPACE)


def identified(vm: JSONObject, known: Known, subject: str) -> JSONObject:
    """Return the VM's document with its actual namespace and name.

    UserError if the manifest names another namespace: kubectl too refuses to apply it elsewhere.
    """
    metadata = vm.get("metadata")
    if not isinstance(metadata, dict):
        return vm  # which is refused for it
    theirs, generated = metadata.get("namespace"), metadata.get("generateName")
    if theirs and known.namespace and theirs != known.namespace:
        fix = f"expected {_FLAG} {theirs}" if known.origin == _FLAG else f"apply its objects in {theirs}"
        raise UserError(
            f"{subject}metadata.namespace",
            f"is {theirs}, and {known.origin} is {known.namespace}",
            f"{fix}, or leave it out of the manifest",
        )
    name = known.name or metadata.get("name")
    if not name and known.suffix and isinstance(generated, str):
        name = generated + known.suffix
    values = {"namespace": theirs or known.namespace, "name": name}
    return {**vm, "metadata": {**metadata, **{key: value for key, value in values.items() if value}}}


def origins(known: Known) -> Mapping[tuple[str | int, ...], str]:
    """Return what an error calls the source of each value that is not from the manifest, by the value's path."""
    values = {"namespace": (known.namespace, known.origin), "name": (known.name, NAME)}
    return {("metadata", key): origin for key, (value, origin) in values.items() if value}
