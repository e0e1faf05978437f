"""What `gpu-launcher` does with a VM's manifest, for kubectl-gpuvm: it is called as a program, with its own flags."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gpuvm.kubectl import ClusterObject, Kubectl, KubectlAnswer, answered, error_of
from gpuvm.pods import MANIFEST_FILE, config_map_of
from program.errors import ProgramError, Refusal

_SECONDS = 120.0  # for a manifest, or for the cards of 5,000 nodes
_NODES = "nodes,pods"
_TAKEN = "resourceslices,resourceclaims"
_CLAIMS = f"{_TAKEN},resourceclaimtemplates,deviceclasses"
_RULES = "devicetaintrules"


def manifest_of(kubectl: Kubectl, each: ClusterObject) -> str:
    """Return the manifest of a pod or a controller, as it was applied. Refusal if its ConfigMap is gone."""
    name = config_map_of(each)
    maps = kubectl.objects("configmap", name) if name else []
    text = maps[0].get("data", {}).get(MANIFEST_FILE) if maps else None
    if not isinstance(text, str):
        wrong = f"its manifest is not there: ConfigMap {name}"
        raise Refusal(each["metadata"]["name"], wrong, "`kubectl gpuvm apply -f vm.yaml` makes it")
    return text


def gpu_launcher(*words: str, given: bytes = b"") -> KubectlAnswer:
    """Return what gpu-launcher says. Refusal if it is not there."""
    beside = Path(sys.executable).parent / "gpu-launcher"
    program = str(beside) if beside.exists() else shutil.which("gpu-launcher")
    if program is None:
        raise Refusal("gpu-launcher", "is not on PATH, and this needs it", "pip install gpu-launcher")
    return answered([program, *words], given=given, within=_SECONDS)


def printed(manifest: str, flags: Sequence[str], given: bytes = b"") -> bytes:
    """Return what `gpu-launcher pod` prints for a manifest, with flags of its own; its notes go to standard error.
    Refusal, in its words, for what it refuses."""
    answer = gpu_launcher("pod", manifest, *flags, given=given)
    if answer.code:
        raise error_of(answer, ["gpu-launcher", "pod", manifest, *flags])
    print(answer.words, end="", file=sys.stderr)
    return answer.out


class Fit(NamedTuple):
    """What `gpu-launcher fit` prints but for its answer, or why it cannot; the answer: why no node takes the pod, and
    what to do."""

    text: str
    answer: tuple[str, str] | None = None


def fit_of(kubectl: Kubectl, pod: ClusterObject) -> Fit:
    """Return what `gpu-launcher fit` says of a pod that waits for a node, of all nodes that the user may list."""
    claims = pod["spec"].get("resourceClaims")
    kinds = f"{_NODES},{_CLAIMS}" if claims else _NODES
    named = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    try:
        text = manifest_of(kubectl, pod)
        cluster = kubectl.objects(kinds, "--all-namespaces", within=_SECONDS)
        cluster += _served(_RULES, kubectl) if claims else []
        with TemporaryDirectory() as directory:
            file = Path(directory) / MANIFEST_FILE
            file.write_text(text, encoding="utf-8")
            given = json.dumps({"items": cluster}).encode()
            answer = gpu_launcher("fit", str(file), "--cluster", "-", "--pod", named, "--json", given=given)
    except ProgramError as error:
        return Fit(f"fit: {error}\n")
    if not answer.out:
        return Fit(f"fit: {answer.words}")
    told = json.loads(answer.out)
    return Fit(told["text"], told["answer"] and (told["answer"]["wrong"], told["answer"]["fix"]))


def map_of(kubectl: Kubectl) -> bytes:
    """Return the page that `gpu-launcher map` makes of the whole cluster. Refusal where the user may not list it."""
    cluster = kubectl.objects(_NODES, "--all-namespaces", within=_SECONDS)
    cluster += _served(_TAKEN, kubectl) + _served(_RULES, kubectl)
    words = ("map", "--cluster", "-")
    answer = gpu_launcher(*words, given=json.dumps({"items": cluster}).encode())
    if answer.code:
        raise error_of(answer, ["gpu-launcher", *words])
    return answer.out


def _served(kinds: str, kubectl: Kubectl) -> list[ClusterObject]:
    """Return the objects of all namespaces; none where the API server does not serve such: DRA before Kubernetes 1.34,
    DeviceTaintRules, as by default, before 1.37. Refusal where the user may not list them."""
    try:
        return kubectl.objects(kinds, "--all-namespaces", within=_SECONDS)
    except Refusal as refusal:
        if "the server doesn't have a resource type" in str(refusal):
            return []
        raise
