"""Bytes with a few of them changed, for a server that is to survive them."""

import random


def changed(valid: bytes, dice: random.Random, *, empty: bytes) -> bytes:
    """Valid input with one to six changes; `empty` stands where nothing is left."""
    data = bytearray(valid)
    for _ in range(dice.randint(1, 6)):
        place = dice.randrange(len(data))
        match dice.choice(["flip", "cut", "add", "double", "swap"]):
            case "flip":
                data[place] ^= 1 << dice.randrange(8)
            case "cut":
                del data[place : place + dice.randint(1, 20)]
            case "add":
                data[place:place] = dice.randbytes(dice.randint(1, 20))
            case "double":
                data[place:place] = data[place : place + 60]
            case _:
                data = data[place:] + data[:place]
        data = data or bytearray(empty)
    return bytes(data)
