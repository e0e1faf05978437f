"""Calls of `gpu-launcher` for kubectl-gpuvm, with a VM's manifest: it runs as a program, with its own flags."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gpuvm.kubectl import LONGEST, Kubectl, Printed, read_printed
from gpuvm.objects import MANIFEST_FILE, Pod
from gpuvm.pods import recorded
from gpuvm.process import ProgramAnswer, error_of, run_program
from program.errors import ProgramError, Refusal
from program.problem import printable

_NODES = "nodes,pods"
_TAKEN = "resourceslices,resourceclaims"  # served from Kubernetes 1.34 on
_CLAIMS = f"{_TAKEN},resourceclaimtemplates,deviceclasses"
_RULES = "devicetaintrules"  # served by default from Kubernetes 1.37 on


def gpu_launcher(*words: str, stdin: bytes = b"") -> ProgramAnswer:
    """Return gpu-launcher's output for these arguments. Refusal if the program is missing."""
    beside = Path(sys.executable).parent / "gpu-launcher"
    program = str(beside) if beside.exists() else shutil.which("gpu-launcher")
    if program is None:
        raise Refusal("gpu-launcher", "is not on PATH, and this needs it", "pip install gpu-launcher")
    return run_program([program, *words], stdin=stdin, within=LONGEST)


def printed(manifest: str, flags: Sequence[str], stdin: bytes = b"") -> Printed:
    """Return what `gpu-launcher pod` prints for a manifest, with its own flags; its notes go to standard error. Raise
    its error, in its own words, if it fails."""
    answer = gpu_launcher("pod", manifest, *flags, stdin=stdin)
    if answer.code:
        raise error_of(answer, ["gpu-launcher", "pod", manifest, *flags])
    print(printable(answer.words), end="", file=sys.stderr)
    return read_printed(answer.out)


class Fit(NamedTuple):
    """What `gpu-launcher fit` prints except its answer, or why it failed. `answer`: why no node takes the pod, and what
    to do."""

    text: str
    answer: tuple[str, str] | None = None


def fit_of(kubectl: Kubectl, pod: Pod) -> Fit:
    """Return the output of `gpu-launcher fit` for a pod that waits for a node, about all nodes that the user
    may list."""
    kinds = (f"{_NODES},{_CLAIMS}", _RULES) if pod.spec.resource_claims else (_NODES,)
    try:
        text = recorded(kubectl, pod).manifest
        cluster = kubectl.cluster(*kinds)
        with TemporaryDirectory() as directory:
            file = Path(directory) / MANIFEST_FILE
            file.write_text(text, encoding="utf-8")
            words = ("fit", str(file), "--cluster", "-", "--pod", pod.place, "--json")
            answer = gpu_launcher(*words, stdin=cluster)
    except ProgramError as error:
        return Fit(f"fit: {error}\n")
    if not answer.out:
        return Fit(f"fit: {answer.words}")
    fit = json.loads(answer.out)
    return Fit(fit["text"], fit["answer"] and (fit["answer"]["wrong"], fit["answer"]["fix"]))


def map_of(kubectl: Kubectl) -> bytes:
    """Return the page that `gpu-launcher map` makes of the whole cluster. Refusal if the user may not list the
    cluster."""
    words = ("map", "--cluster", "-")
    answer = gpu_launcher(*words, stdin=kubectl.cluster(_NODES, _TAKEN, _RULES, beside=kubectl.cordons()))
    if answer.code:
        raise error_of(answer, ["gpu-launcher", *words])
    return answer.out
