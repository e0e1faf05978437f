"""Hooks of MkDocs: the pages that a checkout has outside docs/, and links that hold in a checkout and on the site.

See https://www.mkdocs.org/dev-guide/plugins/#events for what calls them.
"""

import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

#: Where files are that are no pages. Not `repo_url`: the theme would ask its forge for the repository's stars.
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

#: Pages outside docs/, and their names on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

#: What counts less in a search than the pages for users, and what counts more; by folder or page.
_OF_CONTRIBUTORS = ("contributing.md", "testing.md", "releases.md", "dependencies.md")
_BOOSTS = {
    "troubleshooting.md": 1.9,
    "kubectl.md": 1.3,
    "getting-started.md": 0.7,
    "security.md": 0.5,
    "python.md": 0.5,
    "runbooks": 0.2,
    **dict.fromkeys((*_OF_CONTRIBUTORS, "changelog.md", "index.md", "decisions"), 0.1),
}

#: A link of Markdown: `](target)`, with a heading or without.
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of folders: each decision, and each alert's runbook."""
    tree = {title: pages for section in config.nav or () for title, pages in section.items()}
    tree["Decisions"] += _pages("decisions")
    (alerts,) = (entry["Alerts"] for entry in tree["Reference"] if "Alerts" in entry)
    alerts += _pages("runbooks")
    return config


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/."""
    for source, name in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between pages into the site's, and those to other files into the repository's."""
    page.meta["search"] = {"boost": _BOOSTS.get(posixpath.dirname(page.file.src_uri) or page.file.src_uri, 1)}
    names = {name: source for source, name in ELSEWHERE.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        heading = match[2] or ""
        name = ELSEWHERE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(name) is None:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"]({SOURCE}/{kind}/main/{target}{heading})"
        return f"]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or '.')}{heading})"

    return _LINK.sub(link, markdown)


def _pages(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (ROOT / "docs" / folder).glob("*.md"))
