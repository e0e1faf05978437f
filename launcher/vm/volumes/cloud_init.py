"""What a guest's cloud-init reads: the files of a NoCloud seed, or of an OpenStack config drive.

They are as KubeVirt's pkg/cloud-init makes them (https://docs.cloud-init.io, "Datasources"), but the metadata has no
device tags and no instance type.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence

from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.images import ISO
from launcher.vm.volumes.manifest import CloudInit, Volume
from program.errors import Refusal

#: The labels by which cloud-init finds its volume.
NO_CLOUD_LABEL, CONFIG_DRIVE_LABEL = "cidata", "config-2"

#: The keys of secrets, in the order in which they are looked for.
_USER_KEYS, _NETWORK_KEYS = ("userdata", "userData"), ("networkdata", "networkData")

Secrets = Callable[[], Mapping[str, bytes]]


def no_cloud(vmi: VirtualMachineInstance, volume: Volume, secrets: Secrets, keys: Sequence[str] = ()) -> ISO:
    """Return a NoCloud seed. `secrets` reads what the pod mounts for the volume; Refusal if a key is missing there.
    `keys` are public ssh keys for the guest's default user."""
    metadata: dict[str, object] = {"instance-id": str(vmi.uuid), "local-hostname": vmi.hostname}
    if keys:
        metadata["public-keys"] = _numbered(keys)
    user, network = _data(volume.name, volume.cloudInitNoCloud, secrets)
    # user-data is there in any case: without it cloud-init finds no seed.
    files = {"meta-data": _json(metadata), "user-data": user or b""}
    return ISO(NO_CLOUD_LABEL, files if network is None else {**files, "network-config": network})


def config_drive(vmi: VirtualMachineInstance, volume: Volume, secrets: Secrets, keys: Sequence[str] = ()) -> ISO:
    """Return an OpenStack config drive, from the same as no_cloud()."""
    name = f"{vmi.metadata.name}.{vmi.metadata.namespace}"
    metadata: dict[str, object] = {"instance_id": name, "hostname": vmi.hostname, "uuid": str(vmi.uuid)}
    if keys:
        metadata["public_keys"] = _numbered(keys)
    user, network = _data(volume.name, volume.cloudInitConfigDrive, secrets)
    files = {"meta_data.json": _json(metadata), "user_data": user or b""}
    if network is not None:
        files["network_data.json"] = network
    return ISO(CONFIG_DRIVE_LABEL, {f"openstack/latest/{name}": content for name, content in files.items()})


def _data(volume: str, cloud_init: CloudInit | None, secrets: Secrets) -> tuple[bytes | None, bytes | None]:
    """User data and network data."""
    assert cloud_init is not None, "it is the volume's kind"
    user = _written(cloud_init.userData, cloud_init.userDataBase64)
    if (secret := cloud_init.secretRef) is not None:
        user = _secret(volume, secret.name, _USER_KEYS, secrets())
    network = _written(cloud_init.networkData, cloud_init.networkDataBase64)
    if (secret := cloud_init.networkDataSecretRef) is not None:
        network = _secret(volume, secret.name, _NETWORK_KEYS, secrets())
    return user, network


def _written(plain: str | None, encoded: str | None) -> bytes | None:
    if plain:
        return plain.encode()
    return base64.b64decode(encoded) if encoded else None


def _secret(volume: str, name: str, keys: tuple[str, ...], mounted: Mapping[str, bytes]) -> bytes:
    for key in keys:
        if key in mounted:
            return mounted[key]
    names = ", ".join(map(repr, sorted(mounted))) or "nothing"
    raise Refusal(
        f"the volume {volume!r}",
        f"the secret {name!r} has no key {keys[0]!r}",
        f"expected it, or {keys[1]!r}, with data for cloud-init, and not only {names}",
    )


def _numbered(keys: Sequence[str]) -> dict[str, str]:
    """Keys by number, as in KubeVirt's metadata; but one key each: cloud-init takes each text for one key."""
    return {str(number): key for number, key in enumerate(keys)}


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
