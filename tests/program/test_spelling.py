"""Which known word is suggested for one that is not known."""

import pytest

from program.spelling import meant


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("gpu", ("gpus", "hostDevices"), "gpus"),
        ("bootorder", ("bootOrder", "name"), "bootOrder"),
        ("topolgy", ("topology", "topology-policy"), "topology"),
        ("EPYC-Roma", ("EPYC", "EPYC-Rome", "EPYC-Milan"), "EPYC-Rome"),
        # Each is alike, and something else.
        ("metaData", ("userData", "networkData"), None),
        ("EPYC-Genoa", ("EPYC", "EPYC-Rome", "EPYC-Milan"), None),
        ("mode", ("modules", "manager"), None),
        ("livenessProbe", ("readinessProbe",), None),
    ],
)
def test_a_slip_is_mended_and_another_word_is_not_taken_for_it(
    word: str, known: tuple[str, ...], suggested: str | None
) -> None:
    assert meant(word, known) == suggested
