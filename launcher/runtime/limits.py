"""The limits that QEMU inherits from this process, as far as it may raise them."""

import resource


def let_lock(needed: int) -> int | None:
    """Raise RLIMIT_MEMLOCK to `needed` bytes, where it is lower; what may be locked now, None without limit.

    The hard limit only where the kernel lets us, which takes CAP_SYS_RESOURCE (setrlimit(2)), and not just in a user
    namespace: its bit proves nothing there, so this tries.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (needed, needed))
        except (ValueError, OSError):  # ValueError is Python's for EPERM
            return hard
        return needed
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (needed, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def open_files() -> int | None:
    """How many files a process of ours may have open at most; None without limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
