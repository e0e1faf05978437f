"""What takes minutes to make is kept outside the tree, under a key over everything it is made from."""

import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

CACHE = Path(os.environ.get("GPU_LAB_CACHE") or Path.home() / ".cache" / "gpu-launcher-lab")
#: The length of a key.
_KEY = 12


class BuildFailed(Exception):
    """A command of a build failed; the message has the end of what it printed."""


def cached(name: str, inputs: Iterable[str | Path], make: Callable[[Path], None]) -> Path:
    """The directory that `make` fills, made anew when an input changes: a text, a file's content, or a built directory.

    It is there whole or not at all. Two labs that want the same wait for each other. The one made before is kept, for
    another checkout that may be using it; older ones go.
    """
    directory = CACHE / f"{name}-{_key([*inputs, inspect.getsource(make)])}"
    if directory.exists():
        return directory
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory
        part = CACHE / f"{name}-part"
        shutil.rmtree(part, ignore_errors=True)
        made = sorted(CACHE.glob(f"{name}-{'[0-9a-f]' * _KEY}"), key=lambda path: path.stat().st_mtime)
        for older in made[:-1]:
            # What is half removed must not be found under its name.
            older.rename(part)
            shutil.rmtree(part)
        part.mkdir()
        started = time.monotonic()
        print(f"lab: making {name} ...", flush=True)
        try:
            make(part)
        except BaseException:
            shutil.rmtree(part)
            raise
        part.rename(directory)
        print(f"lab: made {name} in {time.monotonic() - started:.0f} s", flush=True)
    return directory


def _key(inputs: Iterable[str | Path]) -> str:
    digest = hashlib.sha256()
    for source in inputs:
        if isinstance(source, Path):
            # What was built before has its own key in its name.
            content = source.read_bytes() if source.is_file() else source.name.encode()
        else:
            content = source.encode()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:_KEY]


def command(*argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a build's command to its end; its standard output. BuildFailed with its last words where it fails.

    In a process namespace, so that nothing of it goes on building when the builder is gone.
    """
    namespace = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    done = subprocess.run(
        [*namespace, *map(str, argv)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise BuildFailed(f"{' '.join(map(str, argv))} exited with {done.returncode}:\n{last}")
    return done.stdout
