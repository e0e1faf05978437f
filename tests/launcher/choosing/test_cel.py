"""An expression asked of many devices: the answer is kept by what the expression reads, and is each device's own."""

from decimal import Decimal
from typing import Any

import pytest

from launcher.choosing.cel import Expression, Unknowable
from launcher.choosing.cluster import PublishedDevice, PublishedID

OURS = "gpu-launcher.dev"
#: What each device is, in the order of the answers below.
DEVICES: list[dict[str, Any]] = [{"x": 1}, {"x": True}, {"x": "1"}, {"x": [1]}, {"x": ["1"]}, {"exists": 1}, {}]


def device(driver: str = OURS, memory: int = 1, **attributes: Any) -> PublishedDevice:
    amounts = {OURS: {"memory": Decimal(memory)}}
    return PublishedDevice(id=PublishedID(driver, "node", "card"), attributes={OURS: attributes}, capacity=amounts)


def answers(expression: Expression, *devices: PublishedDevice) -> list[bool | None]:
    found: list[bool | None] = []
    for each in devices:
        try:
            found.append(expression.holds(each))
        except Unknowable:
            found.append(None)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('type(device.attributes["gpu-launcher.dev"].x) == int', [True, False, False, False, False, None, None]),
        (
            'device.attributes["gpu-launcher.dev"].?x.orValue(0) == [1]',
            [False, False, False, True, False, False, False],
        ),
        ('"x" in device.attributes["gpu-launcher.dev"]', [True, True, True, True, True, False, False]),
        ('device.attributes["gpu-launcher.dev"].exists(name, name == "x")', [True] * 5 + [False, False]),
        # Without the comment's text it looks as if it read an attribute `exists`.
        ('device.attributes["gpu-launcher.dev"].exists//\n(name, name == "x")', [True] * 5 + [False, False]),
        ('cel.bind(its, device.attributes["gpu-launcher.dev"], has(its.exists))', [False] * 5 + [True, False]),
        ('device.attributes["gpu-launcher.dev"]["x"] == "1"', [False, False, True, False, False, None, None]),
    ],
)
def test_each_device_has_its_own_answer_also_the_second_time(text: str, expected: list[bool | None]) -> None:
    devices = [device(**each) for each in DEVICES]
    expression = Expression(text, "a test")
    assert answers(expression, *devices) == expected
    assert answers(expression, *reversed(devices)) == expected[::-1]


def test_devices_of_other_drivers_and_other_memory_have_other_answers() -> None:
    driver = Expression('device.driver == "gpu-launcher.dev"', "a test")
    assert answers(driver, device(), device("gpu.nvidia.com"), device()) == [True, False, True]
    memory = Expression('device.capacity["gpu-launcher.dev"].memory.isGreaterThan(quantity("1"))', "a test")
    assert answers(memory, device(memory=1), device(memory=2), device(memory=1)) == [False, True, False]
