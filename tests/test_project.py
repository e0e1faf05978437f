"""The rules that matter are run: linters, types, import contracts, and that what is generated or pinned is current."""

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from program.ending import Ending
from tests.conftest import LONG, dealt
from tests.processes import BIN, ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [("ruff", "check"), ("ruff", "format", "--check"), ("mypy",), ("lint-imports", "--no-cache")],
    ids=" ".join,
)
def test_the_linters_have_nothing_to_say(command: tuple[str, ...]) -> None:
    result = run(BIN / command[0], *command[1:])
    assert result.returncode == 0, result.stdout + result.stderr


BREACHES = {
    "floor": ("gpuvm/pods.py", "import launcher.vm.paths"),
    "floor-stdlib": ("pci/cards.py", "import yaml"),
    "no-circles": ("plugin/cards/names.py", "import plugin.cards.inventory"),
    "launcher": ("launcher/runtime/run.py", "import launcher.pipeline.pod"),
    "roles": ("launcher/vm/volumes/files.py", "import launcher.vm.volumes.pod"),
    "written": ("launcher/vm/disks/manifest.py", "import launcher.vm.volumes.guest"),
    "decided": ("launcher/vm/memory/guest.py", "import launcher.vm.guest_pci.xml"),
    "guest": ("launcher/vm/guest_pci/bars.py", "import launcher.vm.cards.manifest"),
    "printed": ("launcher/pipeline/start.py", "import launcher.vm.volumes.files"),
    "render": ("launcher/vm/guest_pci/addresses.py", "import launcher.runtime.guest"),
    "client": ("launcher/control/client.py", "import launcher.runtime.operations"),
    "plugin": ("plugin/cards/names.py", "import plugin.node.snapshot"),
    "messages": ("plugin/cards/nodes.py", "import plugin.kubelet_api.v1beta1.deviceplugin_pb2"),
    "gpuvm": ("gpuvm/kubectl.py", "import program.child"),
    "gpuvm-words": ("gpuvm/commands/vms.py", "import gpuvm.process"),
}


def test_every_contract_has_a_breach_to_prove_it() -> None:
    contracts = {contract["id"] for contract in PYPROJECT["tool"]["importlinter"]["contracts"]}
    assert set(BREACHES) == contracts


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said of each contract, by its name, where every breach is in the tree."""
    tree = tmp_path_factory.mktemp("broken")
    for name in ("launcher", "plugin", "gpuvm", "drawing", "program", "pci"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for module, line in BREACHES.values():
        with (tree / module).open("a") as file:
            file.write(f"\n{line}\n")
    result = run("env", "COLUMNS=999", BIN / "lint-imports", "--no-cache", cwd=tree)
    assert result.returncode == 1
    _, *said = re.split(r"(?m)^(.+)\n-+$", result.stdout[result.stdout.index("Broken contracts") :])
    return dict(zip(said[::2], said[1::2], strict=True))


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_of_a_contract_is_named(contract: str, broken: dict[str, str]) -> None:
    (name,) = (each["name"] for each in PYPROJECT["tool"]["importlinter"]["contracts"] if each["id"] == contract)
    module, line = BREACHES[contract]
    importer, imported = module.removesuffix(".py").replace("/", "."), line.removeprefix("import ")
    if not (ROOT / imported.partition(".")[0]).is_dir():  # of another project the package alone is told
        imported = imported.partition(".")[0]
    if contract == "no-circles":  # which names the siblings that lead back to each other
        importer, imported = importer.removeprefix("plugin.cards"), imported.removeprefix("plugin.cards")
    assert re.search(rf"{re.escape(importer)} -> {re.escape(imported)}\b", broken[name]), broken[name]


PROTOS = sorted(
    str(path.relative_to(ROOT)) for program in ("launcher", "plugin") for path in (ROOT / program).rglob("*.proto")
)


@pytest.mark.parametrize("proto", PROTOS)
def test_messages_are_generated_from_the_proto(tmp_path: Path, proto: str) -> None:
    kinds = ("python", "pyi", "grpc_python") if proto.startswith("plugin/") else ("python", "pyi")
    outputs = [f"--{kind}_out={tmp_path}" for kind in kinds]
    result = run(sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, proto)
    assert result.returncode == 0, result.stderr
    for generated in sorted((tmp_path / proto).parent.iterdir()):
        assert generated.read_text() == (ROOT / proto).with_name(generated.name).read_text(), "run make protos"


def test_the_lock_pins_every_dependency_and_names_no_host() -> None:
    lock = (ROOT / "requirements.txt").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
        *PYPROJECT["dependency-groups"]["dev"],
    ]
    assert {re.split(r"[<>=]", requirement)[0] for requirement in wanted} <= pinned
    assert "://" not in lock
    assert "--index" not in lock


def test_every_dependency_has_its_reason_and_ci_the_readmes_test_command() -> None:
    rows = {name for name, _ in _DEPENDENCIES}
    project = PYPROJECT["project"]
    extras = (requirement for extra in project["optional-dependencies"].values() for requirement in extra)
    assert {re.split(r"[<>=]", requirement)[0] for requirement in (*project["dependencies"], *extras)} == rows
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


_DEPENDENCIES = re.findall(
    r"^\| ([a-z0-9-]+) \| .+ \| (`.+) \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE
)
#: What of a package is imported, where that is not its own name.
_IMPORTED = {
    "grpcio": "grpc",
    "protobuf": "google",
    "inotify-simple": "inotify_simple",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
    "libvirt-python": "libvirt|libvirt_qemu",
    "cel-expr-python": "cel_expr_python",
}


@pytest.mark.parametrize(("package", "places"), _DEPENDENCIES)
def test_a_package_is_imported_where_its_row_says_and_nowhere_else(package: str, places: str) -> None:
    name = _IMPORTED.get(package, package)
    imports = re.compile(rf"^\s*(?:import|from) (?:{name})\b", re.MULTILINE)
    importing = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for folder in _PROGRAMS
        for path in (ROOT / folder).rglob("*.py")
        if imports.search(path.read_text())
    }
    wanted = re.findall(r"`(.+?)`", places)
    assert [module for module in sorted(importing) if not any(map(partial(_is_in, module), wanted))] == []
    assert [place for place in wanted if not any(_is_in(module, place) for module in importing)] == []


def _is_in(module: str, place: str) -> bool:
    """Whether a module is the place, or in the folder that it is; `*` stands for one name."""
    parts = place.split(".")
    return fnmatchcase(".".join(module.split(".")[: len(parts)]), place)


def test_contributing_names_every_folder_and_no_other() -> None:
    """In the first column of its first table: a row for each folder of the root, and of the programs."""
    rows = re.findall(r"^\| `([a-z_/]+)/` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    packages = {path.parent for path in (*ROOT.glob("*/__init__.py"), *ROOT.glob("[glp]*/*/__init__.py"))}
    folders = {str(path.relative_to(ROOT)) for path in packages} | {"deploy", "docs", "templates"}
    assert folders <= set(rows), sorted(folders - set(rows))
    assert [row for row in rows if not (ROOT / row).is_dir()] == []
    assert len(rows) == len(set(rows))


def test_each_message_in_troubleshooting_is_one_that_a_program_says() -> None:
    """Its parts between the names and numbers, which stand as capital letters and dots."""
    modules = [
        path
        for folder in ("launcher", "plugin", "gpuvm", "program", "pci")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    code = "".join(path.read_text() for path in modules)
    said = re.sub(r'"\s*\n\s*f?"', "", code) + " ".join(map(os.strerror, errno.errorcode))
    for message in re.findall(r"^\| (`.+?) \|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE):
        parts = re.split(r"^`libvirt: cannot |` or `|\b[A-Z]\b|\bURI\b|\.\.\.|'N'|: |`", message)
        words = [part.strip() for part in parts if not part.startswith("/dev")]
        assert [part for part in words if part not in said] == [], message


def test_troubleshooting_has_each_exit_code_of_run_with_its_words() -> None:
    rows = re.findall(r"^\| (\d\d) \| (.+) \|$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    codes = {int(code): re.sub(r"\[(.+?)\]\(.+?\)", r"\1", words) for code, words in rows}
    endings = {ending.code: ending.words for ending in Ending if ending.code}
    assert codes.keys() == endings.keys()
    for code, words in endings.items():
        assert codes[code].startswith(words)


def test_the_glossary_names_what_is_in_the_code() -> None:
    rows = [row for row in (ROOT / "docs/glossary.md").read_text().splitlines() if row.startswith("| ")]
    names = [name for row in rows for name in re.findall(r"`([a-z_]+\.[\w.]+|[A-Z]\w+\.\w+)`", row.rsplit(" | ", 1)[1])]
    code = "".join(path.read_text() for path in sorted(ROOT.glob("[dlp]*/**/*.py")))
    assert len(names) > 30
    for name in names:
        if name[0].isupper():
            assert all(re.search(rf"\b{part}\b", code) for part in name.split(".")), name
            continue
        module = name.replace(".", "/")
        parent, _, attribute = module.rpartition("/")
        is_module = (ROOT / f"{module}.py").exists() or (ROOT / module / "__init__.py").exists()
        assert is_module or re.search(
            rf"^(class|def) {attribute}\b", (ROOT / f"{parent}.py").read_text(), re.MULTILINE
        ), name


_STARTS = re.compile(
    r"^\s*(import|from) (subprocess|multiprocessing|pty)\b|^\s*from os import|ProcessPool|create_subprocess"
    r"|subprocess_(exec|shell)|\bos\.(fork|exec[lv]|spawn|posix_spawn|popen|system)",
    re.MULTILINE,
)


_PROGRAMS = ("launcher", "plugin", "gpuvm", "drawing", "program", "pci")


def test_only_the_modules_that_a_decision_lists_start_processes() -> None:
    modules = (path for folder in _PROGRAMS for path in (ROOT / folder).rglob("*.py"))
    starting = {str(path.relative_to(ROOT)) for path in modules if _STARTS.search(path.read_text())}
    (page,) = (ROOT / "docs/decisions").glob("*-children-and-deadlines.md")
    assert starting == {"program/child.py", *re.findall(r"^\| `(.+?)` \|", page.read_text(), re.MULTILINE)}


#: What writes to a file that is there, as sysfs has them, and what rewrites the journal of that.
_WRITES = re.compile(r"\bO_(?:WRONLY|RDWR)\b|\.write_(?:text|bytes)\(|\bopen\([^)]*[\"'][awx]|r\+")
_REMEMBERS = re.compile(r"\bjournal\.(?:change|write)\(|\bJournalFile\(")


def test_the_engine_alone_writes_to_sysfs_and_only_changes_and_kinds_remember_what_was() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "plugin").rglob("*.py")}
    writing = {path for path, text in texts.items() if _WRITES.search(text)}
    assert writing == {"plugin/changes/engine.py", "plugin/state_files.py"}
    remembering = {Path(path).parts[1] for path, text in texts.items() if _REMEMBERS.search(text)}
    assert remembering == {"changes", "kinds"}


def test_no_module_has_more_than_450_lines() -> None:
    written = (path for folder in _PROGRAMS for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name)
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in written}
    assert {path: count for path, count in lines.items() if count > 450} == {}


#: Classes whose name another module has too: KubeVirt's names of fields, and what means the same on both sides.
_SHARED_NAMES = {
    "Action",  # what a command is asked to do
    "Domain",  # KubeVirt's spec.domain, and libvirt's domain of the Python API
    "Fit",  # what `gpu-launcher fit` prints, and what kubectl gpuvm reads
    "Metadata",  # of a manifest, and of an object of the cluster
    "Plan",  # docs/glossary.md: of bind, and of vgpus
    "Pod",  # that is printed, and that is in the cluster
    "Probe",  # KubeVirt's spec.livenessProbe, and the kernel's probe of a new function
    "ResourceClaim",  # that a manifest names, and that is in the cluster
    "Survey",  # docs/glossary.md: of bind, and of vgpus
    "Unanswered",  # no answer of the API server, and of the Fabric Manager
    "VM",  # of its launcher's pod, and of its launcher
}


def test_a_public_class_has_its_name_alone() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for folder in _PROGRAMS:
        for path in (ROOT / folder).rglob("*.py"):
            if "_pb2" not in path.name:
                for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
                    modules[name].append(str(path.relative_to(ROOT)))
    twice = {name: places for name, places in modules.items() if len(places) > 1}
    assert twice.keys() == _SHARED_NAMES, twice


def test_decisions_are_25_pages_by_subject_each_with_its_number_in_force_and_on_a_screen() -> None:
    pages = sorted((ROOT / "docs/decisions").iterdir())
    assert len(pages) <= 25
    for number, page in enumerate(pages, start=1):
        assert page.name.startswith(f"{number:04}-")
        title, _, status, *lines = page.read_text().split("\n")
        assert title.startswith(f"# {number}. ")
        assert status == "Status: in force.", page.name
        assert {"## What", "## Why"} <= {*lines}, page.name
        assert len(lines) <= 70, page.name


def test_rendering_imports_neither_libvirt_nor_grpc() -> None:
    program = (
        "import sys, launcher.__main__; sys.argv = ['gpu-launcher', 'render', 'tests/fixtures/vms/no-devices.yaml']\n"
        "try: launcher.__main__.main()\n"
        "except SystemExit as end: assert end.code in (0, None), end.code\n"
        "imported = {'libvirt', 'libvirtmod', 'grpc', 'grpclib', 'asyncio', 'google.protobuf'} & set(sys.modules)\n"
        "assert not imported, imported"
    )
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr
    assert "<domain" in result.stdout


LABS = ("tests.lab.build", "tests.lab.shell", "pytest tests/lab -p no:cacheprovider")
ALL_OF_IT = "unshare, nsenter, setpriv, ip, qemu-img, qemu-system-x86_64 on the PATH; "


@pytest.mark.parametrize(
    ("module", "as_whom", "path", "needs"),
    [
        *((lab, ("unshare", "--user"), os.environ["PATH"], "root: ") for lab in LABS),
        (LABS[0], (), "/nowhere", ALL_OF_IT),
    ],
)
def test_a_lab_that_the_host_cannot_have_says_what_is_missing_and_fails(
    module: str, as_whom: tuple[str, ...], path: str, needs: str
) -> None:
    done = subprocess.run(
        [*as_whom, sys.executable, "-m", *module.split()],
        cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"the lab needs {needs}" in done.stdout + done.stderr
    assert done.returncode == 1


def test_a_lab_of_a_kubernetes_that_there_is_no_file_for_says_which_there_are() -> None:
    env = {**os.environ, "KUBERNETES": "1.33"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.build"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert re.search(r"the lab needs KUBERNETES to be 1\.34, .*1\.36.* or newest; found 1\.33\n$", done.stderr)
    assert done.returncode == 1


def test_a_directory_of_kubevirts_without_its_objects_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    env = {**os.environ, "KUBEVIRT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.build"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith(f"the lab needs objects/ in {tmp_path}, which KUBEVIRT names; ")
    assert done.returncode == 1


def test_a_worker_begins_with_a_part_of_the_long_files_which_are_there() -> None:
    assert dealt([["a1", "a2"], ["b"], ["c"]], ["d", "e", "f", "g"], 2) == ["a1", "a2", "c", "d", "b", "e", "f", "g"]
    assert set(LONG) <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_tests_files_are_where_tests_temporary_has_them() -> None:
    """Not where pytest had its own before it read conftest.py."""
    assert tempfile.gettempdir() == os.path.abspath(os.environ["TMPDIR"])  # noqa: PTH100 (as tempfile makes it)
