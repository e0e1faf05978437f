"""`make lab-versions`: the mission and the DRA test with each Kubernetes that go/kubernetes has a file for, the oldest
first, and a table of what was seen. A version that fails does not keep the next one from being tried.
"""

import os
import re
import subprocess
import sys
import time

from tests.lab import build
from tests.processes import ROOT

_TESTS = "ARGS=-k 'test_mission or test_dra'"


def main() -> None:
    """Exit with 1 where a version has failed."""
    versions = build.kubernetes_versions()
    tried = {version: _tried(minor) for minor, version in versions.items()}
    print("| Kubernetes | built in | tests ran for | what came of it |\n|---|---|---|---|")
    for version, (_, building, testing, what) in tried.items():
        print(f"| {version} | {building:.0f} s | {testing:.0f} s | {what} |")
    sys.exit(not all(passed for passed, *_ in tried.values()))


def _tried(minor: int) -> tuple[bool, float, float, str]:
    """Whether it passed, the seconds that building and testing took, and pytest's last words."""
    environ = {**os.environ, "KUBERNETES": f"1.{minor}", "KUBEVIRT": ""}
    began = time.monotonic()
    built = subprocess.run([sys.executable, "-m", "tests.lab.build"], cwd=ROOT, env=environ, check=False)
    building = time.monotonic() - began
    if built.returncode != 0:
        return False, building, 0, "not built"
    began, words = time.monotonic(), "no test ran"
    with subprocess.Popen(["make", "lab", _TESTS], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        for line in lab.stdout:
            print(line, end="", flush=True)
            if summary := re.match(r"=+ (.*) in [\d.]+s", line):
                words = summary[1]
    return lab.returncode == 0, building, time.monotonic() - began, words


if __name__ == "__main__":
    main()
