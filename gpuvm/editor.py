"""The user's editor, on a copy of a manifest."""

import os
import shlex
import subprocess
from pathlib import Path

from program.errors import Refusal


def edit_file(file: Path) -> None:
    """Have the user edit a file, in the editor that `kubectl edit` would start. Refusal if the editor fails."""
    editor = os.environ.get("KUBE_EDITOR") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), file], check=False)  # noqa: S603 (the user's own)
    except (OSError, ValueError) as error:
        raise Refusal(editor, f"cannot be started: {error}", "name an editor with KUBE_EDITOR") from error
    if done.returncode:
        raise Refusal(editor, f"has ended with {done.returncode}", "nothing was changed")
