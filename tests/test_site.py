"""The site of docs/: each page has its place in it, and each of its links leads somewhere."""

import os
import subprocess
from pathlib import Path

from tests.processes import BIN, ROOT


def build(into: Path) -> Path:
    command = [f"{BIN / 'mkdocs'}", "build", "--quiet", "--strict", "--site-dir", f"{into}"]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return into


def test_each_page_has_its_place_and_each_link_its_target(tmp_path: Path) -> None:
    """MkDocs is strict: a page that mkdocs.yaml does not name, or a heading that is not there, is an error."""
    site = build(tmp_path / "site")
    assert "Why a GPU is not offered" in (site / "troubleshooting.html").read_text()
    assert 'href="security.html"' in (site / "index.html").read_text()
    assert (
        "/blob/main/deploy/plugin/config.yaml"
        in (site / "choosing.html").read_text()
        + (site / "first-day.html").read_text()
        + (site / "gpu-plugin.html").read_text()
    )
