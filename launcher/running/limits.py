"""This process's resource limits, which QEMU inherits."""

import resource


def let_lock(needed: int) -> int | None:
    """Raise RLIMIT_MEMLOCK to `needed` bytes if it is lower; return how many may be locked now, None for no limit.

    To raise the hard limit takes CAP_SYS_RESOURCE (setrlimit(2)) outside of a user namespace. The capability's bit does
    not tell that, so this tries.
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
    """Return how many files a process of ours may have open; None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
