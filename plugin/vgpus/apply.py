"""Does the steps of a plan: all or none of a card, and each card whatever happens to others."""

from collections.abc import Callable

from pci.address import PCIAddress
from pci.sysfs.attribute import Unreadable
from plugin.changes.engine import Failed, Wedged
from plugin.changes.journal import Journal
from plugin.vgpus.plan import Plan, Step
from plugin.vgpus.steps import Undo, World, do
from program.errors import Refusal
from program.problem import Problem


def apply(world: World, plan: Plan, ours: Journal, done: Callable[[PCIAddress, Step], None]) -> tuple[Problem, ...]:
    """Do the steps; return why some could not be done. `ours` is the journal before them, `done` is told of each."""
    problems = []
    world.journal.change(lambda _: ours)
    for card, steps in plan.steps.items():
        undos: list[tuple[Step, Undo]] = []
        for step in steps:
            try:
                undos.append((step, do(world, step)))
            except (Failed, Unreadable, Refusal) as error:
                failed = _problem(card, error)
                stuck = _undone(undos, hangs=isinstance(error, Wedged))
                outcome = f"not undone: {', '.join(stuck)}" if stuck else "the card is as it was before"
                problems.append(Problem(failed.subject, f"{failed.wrong}, and {outcome}", failed.fix))
                break
            done(card, step)
    return tuple(problems)


def _undone(undos: list[tuple[Step, Undo]], *, hangs: bool) -> list[str]:
    """Undo these steps, the last first; return which of them could not be undone, and why."""
    if hangs:
        # Another write to the card would hang as well.
        return [f"{step} (the kernel is still at it)" for step, _ in undos]
    stuck = []
    for step, undo in reversed(undos):
        try:
            undo()
        except (Failed, Unreadable, Refusal) as error:
            stuck.append(f"{step} ({error})")
    return stuck


def _problem(card: PCIAddress, error: Failed | Unreadable | Refusal) -> Problem:
    if isinstance(error, Unreadable):
        return Problem(str(card), f"cannot be read any more: {error}", "see the kernel's log (dmesg)")
    subject, wrong, fix = error.problem
    return Problem(subject if str(card) in subject else f"{card}: {subject}", wrong, fix)
