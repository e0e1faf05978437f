"""The endings of a VM: gpu-launcher exits with their codes, which kubectl-gpuvm reads in the pod's status."""

from enum import Enum


class Ending(Enum):
    """How a VM ended: the exit code of `gpu-launcher run`, and the words of its last line.

    Codes from 10: those below are of errors (program/errors.py) and findings (program/problem.py).
    docs/troubleshooting.md lists all of them.
    """

    POWERED_OFF = 0, "the guest has powered itself off"
    ON_REQUEST = 0, "as requested"
    NOT_STARTED = 0, "the stop came before it had started"
    REBOOTED = 10, "the guest has rebooted, and its rebootPolicy is Terminate"
    PANICKED = 11, "the guest's system has panicked"
    QEMU_DIED = 12, "QEMU was killed (by the kernel, when memory is short) or has crashed: the log has its last words"
    TAKEN = 13, "another client of libvirt has destroyed, saved or migrated it"
    CONNECTION_LOST = 14, "the connection to libvirt is lost, and what becomes of the guest is for that libvirt to say"
    FILES_LOST = 15, "virtiofsd was killed or has crashed, and the guest has lost the volume that the log names"
    INTERRUPTED = 16, "it was to run to the guest's own end, and was asked to end before"
    SUSPENDED = 17, "suspended: its memory is on its claim, and its next pod resumes it"
    MOVED = 18, "moved: its guest goes on in another pod"

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        self.words = words
