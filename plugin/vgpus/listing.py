"""What cards are cut into, as text: each vGPU with its user and its maker, and what can be made beside them."""

from collections.abc import Iterator

from pci.vgpus import CutCard
from plugin.vgpus.plan import can_become, vgpus_of
from plugin.vgpus.survey import Survey
from program.problem import listed, one_line

_MOST = 24  # types in a line


def lines(survey: Survey) -> Iterator[str]:
    """Yield the lines of all cards of the survey."""
    for card in survey.cards:
        yield one_line(f"{card.address}: {_functions(survey, card)}")
        for vgpu in vgpus_of(survey, card):
            maker = "made by gpu-plugin" if vgpu.ours else "made by others"
            use = "free" if vgpu.user is None else f"in use by {vgpu.user}"
            yield one_line(f"  {vgpu.where}: {vgpu.name or 'a type without a name'}, {maker}, {use}")
        if card.places:
            yield one_line(f"  one more can be: {listed(can_become(card), _MOST) or 'none'}")


def _functions(survey: Survey, card: CutCard) -> str:
    driver = f"on {card.function.driver or 'no driver'}"
    if not card.possible:
        return driver
    ours = ", made by gpu-plugin" if str(card.address) in survey.journal.functions else ""
    used = sum(str(one.address) in survey.users for one in card.functions)
    in_use = f", {used} in use" if used else ""
    return f"{driver}, {len(card.functions)} of {card.possible} virtual functions{ours}{in_use}"
