"""A second node that is only told of: its Node object, and the status of its pods as its kubelet would write it.

Nobody renews what it tells: the cluster loses it 50 s later (kube-controller-manager's --node-monitor-grace-period).
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from launcher.pod.metadata import ID
from tests.lab.control_plane import Cluster


def join(cluster: Cluster, name: str, like: str, resources: Mapping[str, str]) -> None:
    """Let a node by that name be ready. It has what the node `like` has, and these resources."""
    status = cluster.get("node", like)["status"]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": _now()}
    cluster.apply({
        "apiVersion": "v1",
        "kind": "Node",
        # Without the label of its system: the plugin's DaemonSet leaves it alone.
        "metadata": {"name": name, "labels": {"kubernetes.io/arch": "amd64"}},
        "status": {
            **{kind: {**status[kind], **resources} for kind in ("capacity", "allocatable")},
            "conditions": [{**ready, "lastTransitionTime": _now()}],
        },
    })  # fmt: skip


def run(cluster: Cluster, pod: Mapping[str, Any]) -> None:
    """Tell that a pod of the node runs."""
    container = {"name": "compute", "image": "x", "imageID": "x", "ready": True, "started": True, "restartCount": 0}
    conditions = [*pod["status"]["conditions"], {"type": "Ready", "status": "True", "lastTransitionTime": _now()}]
    state = {"running": {"startedAt": _now()}}
    patch = {
        "phase": "Running",
        "startTime": _now(),
        "conditions": conditions,
        "containerStatuses": [{**container, "state": state}],
    }
    name = pod["metadata"]["name"]
    words = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": patch}))
    cluster.kubectl("patch", "pod", name, *words)


def most_at_once(events: str, vm: str) -> int:
    """On how many nodes pods of the VM were at once, at most, by what `kubectl get pods --watch` has said as JSON: pods
    that had a node, and had not ended."""
    there: dict[str, str] = {}
    most = 0
    for event in json.loads("[" + events.strip().replace("}\n{", "},{") + "]"):
        pod = event["object"]
        if pod["metadata"]["labels"][ID] != vm:
            continue
        there.pop(pod["metadata"]["uid"], None)
        node = pod["spec"].get("nodeName")
        if event["type"] != "DELETED" and node and pod["status"]["phase"] not in ("Succeeded", "Failed"):
            there[pod["metadata"]["uid"]] = node
        most = max(most, len(there))
    return most


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
