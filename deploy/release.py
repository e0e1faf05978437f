"""Check that a release is consistent, and print its notes; called by make, in the root of the repository.

deploy/release.py check TAG REPOSITORY   TAG is the version's, CHANGELOG.md has the version and its date, and the URLs
                                         of the Python package are those of REPOSITORY, a URL
deploy/release.py notes                  prints what CHANGELOG.md says of the version
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
version = project["version"]
heading = rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d"
section = re.search(rf"(?ms)^{heading}$(.*?)(?=^## |\Z)", Path("CHANGELOG.md").read_text())
absent = f"CHANGELOG.md: has no section of version {version}; expected the line ## [{version}] - YEAR-MONTH-DAY"


def problems(tag: str, repository: str) -> Iterator[str]:
    """Yield a line for each thing that does not fit."""
    if tag != f"v{version}":
        yield f"the tag is {tag}, and pyproject.toml has version {version}; expected the tag v{version}"
    if not section:
        yield absent
    for name, url in project["urls"].items():
        if not f"{url}/".startswith(f"{repository}/"):
            yield f"pyproject.toml: project.urls.{name} is {url}; expected a page of {repository}"


match sys.argv[1:]:
    case ["check", tag, repository]:
        sys.exit("\n".join(problems(tag, repository)) or 0)
    case ["notes"]:
        print(section[1].strip()) if section else sys.exit(absent)
    case _:
        sys.exit(__doc__)
