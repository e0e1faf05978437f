"""The known word that a misspelt one stands for."""

import difflib
from collections.abc import Iterable

#: Of difflib's ratio. metaData and networkData have 0.63, EPYC-Genoa and EPYC-Milan 0.7: each means something else.
#: Of names in one letter's or one transposition's distance, those from four letters on have more than 0.8. Of three
#: letters, like kmv, those that are the same in another order count too.
_ALIKE = 0.8


def meant(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is nearest to `word`; None if none is near enough to be a misspelling."""
    by_folded = {each.casefold(): each for each in known}
    folded = word.casefold()
    near = difflib.get_close_matches(folded, by_folded, n=1, cutoff=_ALIKE)
    near += [each for each in by_folded if sorted(each) == sorted(folded)]
    return by_folded[near[0]] if near else None
