"""gpu-launcher, the program in the VM's pod and the offline CLI: a KubeVirt VM in, a running libvirt domain out.

The names of __all__ are the Python API that docs/python.md promises; everything else here is private.
"""

TYPE_CHECKING = False  # as type checkers know it: importing typing takes longer than all else until signals are held
if TYPE_CHECKING:
    from launcher.api import Domain, Problem, ProgramError, Refusal, UserError, render

__all__ = ["Domain", "Problem", "ProgramError", "Refusal", "UserError", "render"]


def __getattr__(name: str) -> object:
    """Import the API when it is used: every process of the program imports this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher import api

    return getattr(api, name)
