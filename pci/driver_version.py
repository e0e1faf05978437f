"""The version of NVIDIA's driver, as `580.126.09`. A Fabric Manager has the version of its driver."""

import re

_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", re.ASCII)


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None
