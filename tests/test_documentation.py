"""What users read: links lead somewhere, every page can be found from README, and README's commands work as typed."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

import launcher
from tests.processes import BIN, ROOT

#: Pages that people read: of sysfs' recorded machines, README is what they were recorded on.
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)
README = ROOT / "README.md"


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to, and the heading in them, if any."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            name, _, heading = target.partition("#")
            yield ((page.parent / name).resolve() if name else page), heading


def _anchors(page: Path) -> set[str]:
    """What a forge makes of the page's headings: lower case, spaces as hyphens, other punctuation gone."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for target, heading in _links(page):
        assert target.exists(), f"{page.name} links to {target}"
        assert not heading or heading in _anchors(target), f"{page.name} links to #{heading} of {target.name}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {README}
    while new:
        reached |= new
        targets = {target for page in new for target, _ in _links(page)}
        # A folder is a list of its pages.
        targets |= {page for folder in targets if folder.is_dir() for page in folder.glob("*.md")}
        new = {target for target in targets if target.suffix == ".md"} - reached
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_what_stays_refused_is_refused_in_the_words_of_its_page() -> None:
    words = re.findall(r"^\| .* \| `([^`]+)` \|$", (ROOT / "docs/refused.md").read_text(), re.MULTILINE)
    refused = [path.read_text().partition("\n")[0] for path in (ROOT / "tests/fixtures/refused").iterdir()]
    assert len(words) == 4
    assert [each for each in words if not any(each in line for line in refused)] == []


def test_the_readme_has_at_most_1500_words() -> None:
    assert len(README.read_text().split()) <= 1500


def test_the_readmes_vm_within_its_first_screen_is_one_that_gets_a_gpu() -> None:
    before, manifest = README.read_text().split("```")[:2]
    assert len((before + manifest).splitlines()) <= 25
    domain = launcher.render(manifest.removeprefix("yaml"), {"PCI_RESOURCE_NVIDIA_COM_PGPU": "0000:01:00.0"})
    assert 'alias name="ua-gpu-gpu"' in domain.xml


def test_the_readmes_tables_have_each_command_of_both_programs_and_no_other() -> None:
    import launcher.cli
    import plugin.cli

    for name, module in (("gpu-plugin", plugin.cli), ("gpu-launcher", launcher.cli)):
        (section,) = re.findall(rf"(?ms)^## {name}\n(.*?)^(?=## )", README.read_text())
        named = {word.split()[0] for row in re.findall(r"(?m)^\| (`.+?) \|", section) for word in _words(row)}
        group = get_command(module.command_line([]))
        assert isinstance(group, TyperGroup)
        assert named == {*group.commands}, name


def _words(cell: str) -> list[str]:
    """What is in a cell as code: `bind`, `unbind`."""
    return re.findall(r"`([^`]+)`", cell)


def commands(page: Path) -> list[str]:
    """The lines of a page's indented blocks that are commands of a shell: what they begin with tells."""
    lines = re.findall(r"^    (\S.*)$", page.read_text(), re.MULTILINE)
    return [line for line in lines if re.match(r"(make|kubectl|\S*gpu-(plugin|launcher)) ", line)]


def test_the_readme_names_the_images_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {*re.findall(r"gpu-(?:plugin|launcher):(\d[\d.]*\d)", README.read_text())} == {version}


def test_the_readmes_first_command_is_one_that_a_clone_has() -> None:
    assert commands(README)[0] == "make demo"


@pytest.mark.parametrize("command", commands(README))
def test_a_command_of_the_readme_works_as_typed(command: str) -> None:
    """In the checkout. What `make` starts, tests/test_journey.py and CI run; of a cluster's commands, what they apply
    is there, and of `... | kubectl apply -f -` the first half is run and gives objects."""
    first, _, rest = command.partition(" | ")
    words = shlex.split(first)
    if words[0] == "make":
        (target,) = words[1:]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "kubectl":
        assert words[:3] == ["kubectl", "apply", "-k"]
        assert (ROOT / words[3] / "kustomization.yaml").is_file()
    else:
        assert words[0] in {".venv/bin/gpu-plugin", ".venv/bin/gpu-launcher"}
        done = subprocess.run(
            [BIN / Path(words[0]).name, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
        if rest:
            assert rest == "kubectl apply -f -"
            assert {found["kind"] for found in yaml.safe_load_all(done.stdout)} >= {"Pod"}


def test_what_compatibility_calls_tried_is_what_the_lab_and_the_images_have() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    tried = {row[0]: row[1] for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]* \|$", page, re.MULTILINE)}
    modules = {name: (ROOT / "tests/lab/go" / name / "go.mod").read_text() for name in ("kubernetes", "containerd")}
    for row, name, module in (
        ("Kubernetes", "kubernetes", "k8s.io/kubernetes"),
        ("container runtime", "containerd", "github.com/containerd/containerd/v2"),
    ):
        (version,) = re.findall(rf"^\s*{module} v(\S+)", modules[name], re.MULTILINE)
        assert version in tried[row], row
    files = (ROOT / "tests/lab/go/kubernetes").glob("*.mod")
    versions = {re.findall(r"^\s*k8s.io/kubernetes v(\S+)", file.read_text(), re.MULTILINE)[0] for file in files}
    assert {*re.findall(r"^\| (1\.\d+\.\d+) \|", page, re.MULTILINE)} == versions
    (libvirt, qemu) = re.findall(r"with libvirt (\S+) and QEMU (\S+),", (ROOT / "docs/install.md").read_text())[0]
    assert f"{libvirt} and {qemu} (Debian 13, and the launcher's image)" in tried["libvirt and QEMU"]
    kernel = (ROOT / "tests/fixtures/sysfs/lab-legacy/README.md").read_text()
    assert f"Debian 13's {re.findall(r'Linux (6[.][0-9]+)', kernel)[0]}" in tried["node's kernel"]


def _where_things_go() -> list[str]:
    """The rows of CONTRIBUTING's tables of that."""
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a thing goes")
    return re.findall(r"^\| (?!you add|---).*\|$", text, re.MULTILINE)


def test_contributing_has_at_most_40_rows_of_where_a_thing_goes() -> None:
    assert 30 < len(_where_things_go()) <= 40


@pytest.mark.parametrize("row", _where_things_go(), ids=lambda row: row.split(" | ")[0].strip("| "))
def test_each_path_and_each_name_of_contributings_table_is_there(row: str) -> None:
    """A path from the root, or from a folder that the row has named before; a name in the text of the row's files."""
    folders, texts, names = [ROOT], "", list[str]()
    for code, page in re.findall(r"`([^`\s]+)`|(docs/[\w/.-]+\.md)", row):
        word = code or page
        if "/" in word or re.search(r"\w\.(py|md|yaml|txt|in|sh|c|toml)$", word):
            found = [path for folder in folders if (path := folder / word).exists()]
            assert found, word
            folders += {path if path.is_dir() else path.parent for path in found}
            texts += "".join(file.read_text() for path in found for file in (path, *path.glob("*.*")) if file.is_file())
        else:
            names.append(word)
    missing = [name for name in names if not all(re.search(rf"\b{part}\b", texts) for part in re.findall(r"\w+", name))]
    assert missing == []
