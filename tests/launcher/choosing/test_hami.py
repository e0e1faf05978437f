"""HAMi's matching rules, a row each: what an annotation makes of a card. docs/choosing.md shows some.

The answers are those of checkType, CheckType and CheckUUID of HAMi v2.10 (pkg/device/nvidia/device.go,
pkg/device/devices.go). tests/bench/cluster.py asks the real scheduler for each row as well.
"""

import pytest

from launcher.choosing.fit import fit_of
from tests.launcher.choosing.hami import CARDS, ROWS, TABLE, Row, cluster_of_cards, entries, selection_of


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_fit_gives_hamis_answer(row: Row) -> None:
    fit = fit_of("default/vm", None, entries(row.cards_wanted), selection_of(row), (), cluster_of_cards(CARDS))
    assert {placement.node for placement in fit.fitting} == set(row.nodes)


def test_the_table_of_the_docs_has_rows_of_these() -> None:
    written = [row.written for row in ROWS]
    assert len(TABLE) == 9
    assert [row for row in TABLE if row not in written] == []
