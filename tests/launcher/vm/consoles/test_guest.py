"""Which device is a display: what holds whatever the gpus say of it."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.manifest import GPU, Display, RamFB, VirtualGPUOptions
from launcher.vm.consoles.guest import displays_of
from launcher.vm.devices import Devices
from launcher.vm.peripherals.manifest import Video
from pci.address import PCIAddress
from program.errors import UserError

displays = st.builds(
    Display,
    enabled=st.sampled_from([None, True, False]),
    ramFB=st.builds(RamFB, enabled=st.booleans()),
)
options = st.none() | st.builds(VirtualGPUOptions, display=st.none() | displays)
# Per gpu: what it says, and whether its device is mediated.
gpus = st.lists(st.tuples(options, st.booleans()), max_size=4)


def shown(said: list[tuple[VirtualGPUOptions | None, bool]], *, graphics: bool, video: bool) -> list[set[str]]:
    """For each gpu, which of display and ramfb is on."""
    devices = Devices(
        gpus=tuple(
            GPU(name=str(number), deviceName="a/b", virtualGPUOptions=option) for number, (option, _) in enumerate(said)
        ),
        autoattachGraphicsDevice=graphics,
        video=Video(type="ramfb") if video and graphics else None,
    )
    claims = [
        Claim(
            entry=Entry(kind=EntryKind.GPU, name=str(number), wants="a/b"),
            device=UUID(int=number) if mediated else PCIAddress(0, number + 1, 0, 0),
            variable="V",
        )
        for number, (_, mediated) in enumerate(said)
    ]
    displays = displays_of(devices, claims)
    found = [displays.get(claim.alias) for claim in claims]
    return [set() if each is None else {"display", "ramfb"} if each else {"display"} for each in found]


@given(gpus, st.sampled_from([(False, False), (True, False), (True, True)]))
def test_no_display_without_graphics_no_ramfb_without_a_display_and_one_ramfb_in_all(
    said: list[tuple[VirtualGPUOptions | None, bool]], attached: tuple[bool, bool]
) -> None:
    graphics, video = attached  # a video without graphics is refused before
    try:
        found = shown(said, graphics=graphics, video=video)
    except UserError:
        # Only what was asked for is refused.
        assert any(option is not None and option.display is not None for option, _ in said)
        return
    assert graphics or not any(found)
    assert all("display" in each for each in found if each)
    assert sum("ramfb" in each for each in found) + (video and graphics) <= 1


@given(gpus)
def test_a_display_that_nobody_asked_for_is_the_first_mediated_devices(
    said: list[tuple[VirtualGPUOptions | None, bool]],
) -> None:
    silent: list[tuple[VirtualGPUOptions | None, bool]] = [(None, mediated) for _, mediated in said]
    found = shown(silent, graphics=True, video=False)
    first = next((number for number, (_, mediated) in enumerate(silent) if mediated), None)
    assert [number for number, each in enumerate(found) if each] == ([] if first is None else [first])
