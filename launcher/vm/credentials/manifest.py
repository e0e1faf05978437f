"""spec.accessCredentials: who may log in to the guest. Keys and passwords are in secrets of the VM's namespace."""

from typing import Annotated, Self

from pydantic import model_validator

from launcher.fields.objects import Below, Items, Object, one_of
from launcher.fields.scalars import DNSName, Matching, Text
from launcher.vm.volumes.manifest import Volume

UserName = Annotated[Text, Matching(r"[^\s:/]+", "is no user's name", "expected one without blanks, : and /")]

#: What carries a method's keys: the kind of volume by which cloud-init gets them.
_CARRIED_BY = {"noCloud": "cloudInitNoCloud", "configDrive": "cloudInitConfigDrive"}


class Secret(Object):
    secretName: DNSName


class Source(Object):
    secret: Secret


class ByCloudInit(Object):
    pass


class ByAgentForUsers(Object):
    users: Items[UserName] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.users:
            raise Below("users", "is empty", "name the users of the guest whose keys they are to be")
        return self


class ByAgent(Object):
    pass


class KeyPropagation(Object):
    """How the guest gets the keys: by cloud-init's metadata at its first start, for its default user; or by its agent,
    whenever that starts and the secret changes."""

    noCloud: ByCloudInit | None = None
    configDrive: ByCloudInit | None = None
    qemuGuestAgent: ByAgentForUsers | None = None

    _check = one_of(
        *("noCloud", "configDrive", "qemuGuestAgent"),
        none="says nothing",
        fix="expected one of noCloud, configDrive and qemuGuestAgent",
    )


class PasswordPropagation(Object):
    qemuGuestAgent: ByAgent


class SSHPublicKey(Object):
    """A secret of ssh keys: each of its files has keys, in the form of authorized_keys."""

    source: Source
    propagationMethod: KeyPropagation


class UserPassword(Object):
    """A secret of passwords: each of its files is named after a user and has that user's password."""

    source: Source
    propagationMethod: PasswordPropagation


class AccessCredential(Object):
    sshPublicKey: SSHPublicKey | None = None
    userPassword: UserPassword | None = None

    _check = one_of("sshPublicKey", "userPassword", none="has neither sshPublicKey nor userPassword")

    @property
    def secret(self) -> str:
        """The secret's name."""
        kind = self.sshPublicKey or self.userPassword
        assert kind is not None, "it is the one or the other"
        return kind.source.secret.secretName


def check_credentials(credentials: tuple[AccessCredential, ...], volumes: tuple[Volume, ...]) -> None:
    """Raise Nonsense for keys that cloud-init should apply if no volume carries them to it."""
    kinds = {volume.kind for volume in volumes}
    for index, credential in enumerate(credentials):
        if credential.sshPublicKey is None:
            continue
        for method, kind in _CARRIED_BY.items():
            if getattr(credential.sshPublicKey.propagationMethod, method) is not None and kind not in kinds:
                path = f"accessCredentials[{index}].sshPublicKey.propagationMethod.{method}"
                raise Below(path, f"no volume carries the keys to the guest's {method}", f"add one of kind {kind}")
