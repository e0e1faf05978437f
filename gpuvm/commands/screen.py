"""kubectl gpuvm vnc and screenshot."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags, VMName
from gpuvm.vnc import Viewer, listening, serve, viewer_command
from program.errors import Refusal, UserError
from program.output import print_bytes

_SCREENSHOT = 60.0  # seconds for a picture to come
_PNG = b"\x89PNG"


def screenshot(
    vm: VMName,
    cluster: ClusterFlags,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE.png", help="Where to; - for standard output.")],
) -> None:
    """Write what the guest's screen shows now to a file."""
    if file == "-" and os.isatty(1):
        raise UserError("screenshot -f -", "is on a terminal, which shows no pictures", "expected > FILE.png")
    kubectl, pod = cluster.running_pod(vm)
    picture = kubectl.ctl(pod, "screenshot", "-", within=_SCREENSHOT)
    if file == "-":
        print_bytes(picture)
        return
    if file.endswith(".png") and not picture.startswith(_PNG):
        raise Refusal(file, "QEMU there makes no PNG, but PPM", "name it FILE.ppm")
    try:
        Path(file).write_bytes(picture)
    except OSError as error:
        raise UserError(file, f"cannot be written: {error.strerror}", "name a file that can be") from error


def vnc(
    vm: VMName,
    cluster: ClusterFlags,
    proxy_only: Annotated[bool, typer.Option("--proxy-only", help="Start no viewer; print the port as JSON.")] = False,
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen, with --proxy-only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The local port.  [default: one that is free]")] = 0,
    vnc_type: Annotated[Viewer | None, typer.Option("--vnc-type", help="The viewer.  [default: one on PATH]")] = None,
    vnc_path: Annotated[str | None, typer.Option("--vnc-path", metavar="FILE", help="The viewer's program.")] = None,
) -> None:
    """Open a local port to the guest's screen, and a VNC viewer on it, until that or Ctrl-C ends."""
    kubectl, pod = cluster.running_pod(vm)
    with listening(address if proxy_only else "127.0.0.1", port) as server:
        number = server.getsockname()[1]
        viewer = None if proxy_only else viewer_command(number, vnc_type, vnc_path)
        if proxy_only:
            print(json.dumps({"port": number}), flush=True)
        elif viewer is None:
            where = f"the guest's screen is at 127.0.0.1:{number}, by VNC; Ctrl-C ends it"
            print(f"kubectl-gpuvm: {where} (no viewer on PATH: remote-viewer, vncviewer)", file=sys.stderr, flush=True)
        serve(server, kubectl.ctl_command(pod, "vnc"), viewer)
