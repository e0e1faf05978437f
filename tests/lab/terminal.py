"""Where a person works: kubectl, its plugin gpuvm, and an editor."""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.waiting import CommandFailed, NotYet
from tests.processes import ROOT

HOME = "/run/lab/person"
#: Gives a VM more memory.
_EDITOR = "sed -i s/256Mi/272Mi/"
_FIRST_BYTES = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60).recv(64))"


@dataclass(frozen=True)
class Terminal:
    """Where a person works: kubectl, its plugin gpuvm, and an editor."""

    lab: Lab

    def argv(self, *words: str) -> tuple[str, ...]:
        path = f"/run/lab/kubernetes:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
        environ = {"PATH": path, "KUBECONFIG": self.lab.cluster.argv()[2], "TMPDIR": HOME, "KUBE_EDITOR": _EDITOR}
        return ("env", *(f"{name}={value}" for name, value in environ.items()), "kubectl", "gpuvm", *words)

    def gpuvm(self, *words: str, seconds: float = 150) -> str:
        """What `kubectl gpuvm` prints. CommandFailed where it fails."""
        done = self.lab.box.run(*self.argv(*words), seconds=seconds)
        if done.returncode != 0:
            raise CommandFailed(f"kubectl gpuvm {' '.join(words)}: {done.stderr}")
        return done.stdout

    def asked(self, *words: str, seconds: float = 150) -> str:
        """The same, asked again where the launcher had no time to answer: its processor is emulated."""
        until = time.monotonic() + self.lab.box.patience.allowed(seconds)
        while time.monotonic() < until:
            with suppress(CommandFailed):
                return self.gpuvm(*words, seconds=seconds)
        return self.gpuvm(*words, seconds=seconds)

    def refused(self, *words: str) -> str:
        """Why it does not do that."""
        with pytest.raises(CommandFailed) as why:
            self.gpuvm(*words)
        return str(why.value)

    def listed(self) -> dict[str, dict[str, Any]]:
        """The VMs that it lists, by the names of their pods, or of their controllers where there is no pod."""
        return {vm["name"]: vm for vm in json.loads(self.gpuvm("list", "-o", "json"))}

    def said_at(self, port: int, text: str) -> None:
        """Wait until the text comes first to whoever connects to the local port."""

        def look() -> bool:
            done = self.lab.box.run(sys.executable, "-c", _FIRST_BYTES, str(port))
            if text not in done.stdout:
                raise NotYet(done.stdout + done.stderr)
            return True

        self.lab.until(f"{text} at port {port}", look, 150)
