"""The instance types and preferences that KubeVirt installs in every cluster.

The facts are from github.com/kubevirt/common-instancetypes (Apache-2.0), release v1.7.0; series gn1 is from v1.2.2, the
last one with it. tests/common_instancetypes.py writes them into common.json.
"""

import json
from pathlib import Path

from launcher.manifest.inputs import TypeObject

FILE = Path(__file__).with_name("common.json")


def common(kind: str, name: str | None) -> TypeObject | None:
    """Return the object of this kind and name; None if KubeVirt installs none."""
    spec = json.loads(FILE.read_bytes()).get(kind, {}).get(name)
    if name is None or spec is None:
        return None
    value = {"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return TypeObject(value, f"common-instancetypes {'v1.2.2' if name.startswith('gn1.') else 'v1.7.0'}")
