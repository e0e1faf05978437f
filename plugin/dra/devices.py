"""A claim's devices as changes of the node: binds its cards to vfio, makes its vGPUs, and takes both back."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from plugin.changes.users import AskUsers, KubeletList, users
from plugin.dra.binder import Binder
from plugin.dra.checkpoint import Prepared, PreparedDevice, claimed
from plugin.kinds.vgpus import NotMade
from plugin.watch.watch import Watch


class ClaimDevices:
    """Changes devices for claims. Lives in the watch's event loop, and looks at the node again after each change.
    `others` are all prepared claims beside the changed one: their devices and those of pods are not touched."""

    def __init__(self, watch: Watch, binder: Binder) -> None:
        self._watch = watch
        self._binder = binder

    async def bind(
        self,
        devices: tuple[PreparedDevice, ...],
        before: tuple[PreparedDevice, ...],
        others: Mapping[str, Prepared],
    ) -> tuple[PreparedDevice, ...]:
        """Bind the devices to vfio, and return them with the functions bound for the claim, including those bound
        `before`. ProgramError if that fails."""
        functions = [address for device in devices for address in device.bound]
        if not functions:
            return devices
        config = self._watch.snapshot.config
        ours = await self._binder.bind(functions, config, self._users(others)) | {
            address for each in before for address in each.bound
        }
        await self._watch.look_again()
        # A device that somebody else has bound in the meantime is not given back.
        return tuple(device if ours & {*device.bound} else replace(device, bound=()) for device in devices)

    async def make(self, devices: tuple[PreparedDevice, ...], others: Mapping[str, Prepared]) -> None:
        """Make the vGPUs among the devices; ProgramError if that fails, NotMade, with the names of its vGPUs of that
        type, if a card does not make one."""
        config = self._watch.snapshot.config
        offers = {vgpu.name: vgpu for card in self._watch.snapshot.claimable for vgpu in card.vgpus}
        vgpus = [device for device in devices if device.is_made]
        for device in vgpus:
            vgpu = offers[device.name]
            try:
                await self._binder.make_vgpu(device.id, str(vgpu.card.address), vgpu.type, config, self._users(others))
            except NotMade as error:
                same = (name for name, other in offers.items() if (other.card, other.type) == (vgpu.card, vgpu.type))
                raise NotMade(*error.problem, names=same) from error
        if vgpus:
            await self._watch.look_again()

    async def give_back(self, device: PreparedDevice, others: Mapping[str, Prepared]) -> None:
        """Give a bound device back to its driver, or remove a made vGPU; ProgramError if that fails."""
        if device.is_made:
            await self.remove([device.id], others)
        elif device.bound:
            await self._binder.unbind(device.bound, self._users(others))

    async def remove(self, vgpus: Iterable[str], others: Mapping[str, Prepared]) -> None:
        """Remove the vGPUs with these IDs; ProgramError if that fails."""
        await self._binder.remove_vgpus(vgpus, self._watch.snapshot.config, self._users(others))
        await self._watch.look_again()

    def _users(self, others: Mapping[str, Prepared]) -> AskUsers:
        """Return a function for the users of devices: pods by the kubelet's last list, and the other claims."""
        snapshot = self._watch.snapshot
        listed = KubeletList(assignments=snapshot.assignments or frozenset(), ids=snapshot.resource_ids)
        return partial(users, listed=listed, claimed=claimed(others))
