"""prctl(2), with numbers of linux/prctl.h: the standard library lacks it, and packages for it have to be compiled."""

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


def prctl(option: int, value: int) -> None:
    """Call prctl(2); OSError if the kernel refuses."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    call.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    if call(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")
