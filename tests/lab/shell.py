"""`make lab-shell`: a person in the lab, with the machine booted, the cluster up and the plugin running."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab import build
from tests.lab.kubevirt import cluster
from tests.lab.lab import Lab, running_lab
from tests.lab.machine import BARE, KUBEVIRT, LEGACY, MODERN
from tests.lab.node import way_in

_MACHINES = {machine.name: machine for machine in (MODERN, LEGACY, BARE, KUBEVIRT)}

_GREETING = """\
The lab is up; it ends with this shell.
    kubectl ...     the cluster's admin
    node COMMAND    run it as root on the node; node alone is a plain shell there
    {logs}    what every part has to say
"""


def main() -> None:
    """The lab of the machine that is named, modern if none is, until its shell ends."""
    name = sys.argv[1] if len(sys.argv) > 1 else MODERN.name
    if name not in _MACHINES:
        sys.exit(f"lab-shell: there is no machine {name}; expected one of {', '.join(_MACHINES)}")
    if name == KUBEVIRT.name and build.kubevirt_directory() is None:
        sys.exit("lab-shell: KUBEVIRT=DIR names a directory with a release of KubeVirt")
    build.main()
    with tempfile.TemporaryDirectory() as place, running_lab(_MACHINES[name], build.tree_images(Path(place))) as lab:
        plugin = lab.start_plugin()
        if name == KUBEVIRT.name:
            cluster.start(lab, cluster.permitted(lab, plugin), ["Sidecar"])
        _write_node_command(lab)
        print(_GREETING.format(logs="/run/lab/log"), flush=True)
        subprocess.run(lab.box.argv("env", *_environ(lab), "bash", "--norc"), check=False)


def _environ(lab: Lab) -> tuple[str, ...]:
    return (
        "PATH=/run/lab/bin:/run/lab/kubernetes:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "KUBECONFIG=/run/lab/kubernetes/admin.conf",
        f"PS1=lab {lab.node.name}# ",
    )


def _write_node_command(lab: Lab) -> None:
    command = lab.box.path("/run/lab/bin/node")
    command.parent.mkdir()
    netcat = " ".join(way_in())
    command.write_text(
        f'#!/bin/sh\n[ $# -gt 0 ] || exec {netcat}\n{{ echo "$* 2>&1"; echo exit; }} | {netcat}\n',
    )
    command.chmod(0o755)


if __name__ == "__main__":
    main()
