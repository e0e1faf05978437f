"""gpu-launcher render: whole processes, timed in turn, so that a noisy machine is noisy for all of them alike.

Each command runs once to warm up, then RUNS times in turn with the others; what counts is the median of the ratios.
`virt-install` (Debian's package virtinst) runs beside ours.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import Beside, table, within_times
from tests.processes import BIN, FIXTURES, ROOT

RUNS = 15

VARIABLE = "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A=0000:01:00.0"
RENDER: list[str | Path] = [BIN / "gpu-launcher", "render", FIXTURES / "vms/one-gpu.yaml", "--env", VARIABLE]
IMPORTS = "import lxml.etree, jinja2, pydantic, typer, yaml"
VIRT_INSTALL: list[str | Path] = [
    *("virt-install", "--print-xml", "--connect", "test:///default", "--name", "one-gpu", "--memory", "8192"),
    *("--vcpus", "4", "--osinfo", "generic", "--disk", "none", "--network", "none", "--import", "--graphics", "none"),
    # The test driver has no such node device to look up, so the address is set as XML.
    *("--hostdev", "xpath0.set=./@type,xpath0.value=pci,xpath1.set=./source/address/@bus,xpath1.value=0x01"),
]


@dataclass(frozen=True)
class Timed:
    """A command and the CPU seconds (user and system) and wall seconds of each of its runs."""

    name: str
    command: Sequence[str]
    cpu: list[float]
    wall: list[float]

    @property
    def milliseconds(self) -> list[float]:
        """Wall, of each run."""
        return [wall * 1e3 for wall in self.wall]

    def run(self, environ: Mapping[str, str], *, counted: bool) -> None:
        before = os.times()
        start = time.perf_counter()
        result = subprocess.run(self.command, cwd=ROOT, env=environ, capture_output=True, check=False)
        wall = time.perf_counter() - start
        after = os.times()
        assert result.returncode == 0, (self.name, result.stderr.decode())
        if counted:
            used = after.children_user - before.children_user + after.children_system - before.children_system
            self.cpu.append(used)
            self.wall.append(wall)


def main() -> None:
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        f"python -c '{IMPORTS}'": [sys.executable, "-c", IMPORTS],
        "gpu-launcher render, exec to XML": [*RENDER, "--sysfs", FIXTURES / "sysfs/rtx-2060"],
        "the same, on the HGX machine's sysfs": [*RENDER, "--sysfs", FIXTURES / "sysfs/hgx-a100-8-gpu"],
        "virt-install --print-xml, a like VM": VIRT_INSTALL,
    }
    # Byte code is written by the first run and read by the others, as for any user.
    environ = {"PATH": os.environ["PATH"]}
    timed = [Timed(name, list(map(str, command)), [], []) for name, command in commands.items()]
    for counted in [False] + [True] * RUNS:
        for one in timed:
            one.run(environ, counted=counted)
    floor, imports = timed[0], timed[1]
    print(f"{'median of ' + str(RUNS) + ' runs':<72} {'wall':>8} {'CPU':>8} {'/imports':>9} {'/pass':>6}")
    for one in timed:
        wall, cpu = statistics.median(one.wall), statistics.median(one.cpu)
        to_imports = wall / statistics.median(imports.wall)
        to_floor = wall / statistics.median(floor.wall)
        print(f"{one.name:<72} {wall * 1000:5.0f} ms {cpu * 1000:5.0f} ms {to_imports:8.2f}x {to_floor:5.1f}x")
    ours, virt_install = timed[2], timed[-1]
    print(
        table(
            within_times(
                f"gpu-launcher render, the floor is {name}", Beside(ours.milliseconds, its.milliseconds), "ms", most
            )
            for name, its, most in (("virt-install", virt_install, 1.0), ("the imports", imports, 1.4))
        )
    )


if __name__ == "__main__":
    main()
