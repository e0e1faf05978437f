"""Writes launcher/manifest/instancetypes/common.json, from the objects on standard input:

    for tree in common-instancetypes-1.7.0 common-instancetypes-1.2.2; do
        for kind in Instancetypes Preferences; do kubectl kustomize $tree/VirtualMachineCluster$kind; echo ---; done
    done | .venv/bin/python -m tests.common_instancetypes

The trees are releases of github.com/kubevirt/common-instancetypes (Apache-2.0), the newest first: its objects win. The
older one is the last that has gn1.
"""

import json
import sys

import yaml

from launcher.manifest.instancetypes.expansion import FILE


def written(text: str) -> str:
    """The specs by kind and name, a line for each."""
    specs: dict[str, dict[str, str]] = {}
    for found in yaml.safe_load_all(text):
        if found is not None:
            specs.setdefault(found["kind"], {}).setdefault(found["metadata"]["name"], json.dumps(found["spec"]))
    kinds = (
        f"{json.dumps(kind)}: {{\n" + ",\n".join(f"{json.dumps(name)}: {named[name]}" for name in sorted(named)) + "\n}"
        for kind, named in sorted(specs.items())
    )
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(sys.stdin.read()))
