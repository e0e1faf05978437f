import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.fields.quantity import parse_amount


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", 1 << 30),
        ("1.5Gi", 1610612736),  # KubeVirt makes it one byte short
        ("1500m", 2),  # KubeVirt makes it 1
        ("64M", 64_000_000),
        ("2e9", 2_000_000_000),
        ("1E", 10**18),
        ("0.5", 1),
        (".5Ki", 512),
        (1073741824, 1 << 30),
        (1.5e9, 1_500_000_000),
        ("0", 0),
    ],
)
def test_a_quantity_is_read_exactly_and_rounded_up(text: str | float, value: int) -> None:
    assert parse_amount(text).whole == value


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "1 Gi", "1GiB", "0x10", "1e", "--1", "\u0661", "1e999999999", "inf"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity; expected a number with a suffix"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["-1", "10E", "9223372036854775808", "1e99"])
def test_what_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_amount(text)


@given(st.integers(0, 2**63 - 1))
def test_whole_numbers_stay_what_they_are(number: int) -> None:
    assert parse_amount(str(number)).whole == parse_amount(number).whole == number
