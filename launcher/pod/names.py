"""What the objects beside the pod are called."""

from hashlib import sha256

from program.errors import UserError

_LARGEST = 253
_HASH = 10  # as many digits as kustomize puts behind a name


def by_content(vm: str, content: str) -> str:
    """The name of an object that cannot be changed: other content is another object, beside the one that a running pod
    was made with. It is longer than all other names; UserError where Kubernetes takes none of its length."""
    name = f"gpu-launcher-{vm}-{sha256(content.encode()).hexdigest()[:_HASH]}"
    if len(name) > _LARGEST:
        wrong = (
            f"{name[:40]}... would have {len(name)} characters as a config map's name, and Kubernetes takes {_LARGEST}"
        )
        raise UserError("metadata.name", wrong, "shorten it")
    return name


def state_claim(vm: str) -> str:
    """The claim that keeps EFI's variables and the TPM's state, as KubeVirt calls it (pkg/storage/backend-storage)."""
    return f"persistent-state-for-{vm}"
