"""Manifests that nobody meant: every golden one with parts replaced, lost, doubled or broken.

What comes of each is XML that is valid and has nothing in it that was text before, or lines that say what is wrong, 25
at most.
A thousand by default, twenty thousand with `--thorough`.
"""

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from lxml import etree

from launcher.commands.pod import PodFlags, pod
from launcher.commands.schema import json_schema
from launcher.manifest.inputs import read_input
from launcher.vm.versions import newer_elements
from program.errors import ProgramError
from program.log import LogFlags
from program.problem import one_line
from tests.launcher.cases import Case, cases
from tests.launcher.pod.made import more_than_allowed, text_of
from tests.launcher.test_domain import SCHEMA
from tests.launcher.vms import read_manifest
from tests.processes import BIN, ROOT
from tests.waiting import allowed

T = TypeVar("T")
EVIL = "\"/><evil a='b'>&evil;]]><!--"
TEXTS = (
    *(
        "",
        " ",
        "null",
        "~",
        "yes",
        "0",
        "-1",
        "1e400",
        "0x10",
        "1Gi",
        "-1Gi",
        "1.5Ei",
        "100m",
        "1" * 5000,
        "NaN",
        ".inf",
    ),
    *(
        EVIL,
        "a,b=c",
        "${x}",
        "{{ name }}",
        "%s",
        "../../etc/passwd",
        "/",
        "/dev/null",
        "\ud7ff",
        "é" * 300,
        "a" * 70000,
    ),
    *(
        "\x00",
        "\x1b[0m",
        "\x85",
        "\u2028",
        "\ufffe",
        "\U0010ffff",
        "line\nline",
        "\t",
        "-",
        ":",
        "#",
        "1:2:3",
        "2001-99-99",
    ),
)
SCALARS = st.one_of(
    st.sampled_from(TEXTS),
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**31, 2**32, 2**63, 2**64, 10**400, -(2**63)]),
    st.sampled_from([0.5, -0.0, float("inf"), float("nan"), 1e308]),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
CASES = tuple(case for case in cases() if case.libvirt is None)
VALID = etree.RelaxNG(etree.parse(SCHEMA))


def is_valid(domain: etree._Element) -> bool:
    """To the schema that is installed, which may be too old for some elements."""
    return bool(newer_elements(domain)) or VALID.validate(domain)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    below: list[tuple[Any, ...]] = []
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, child in children:
        below += [(*path, key), *places(child, (*path, key))]
    return below


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Case, Any]:
    """A golden case, and the documents of its manifest with one to four changes."""
    case = draw(st.sampled_from(CASES))
    document = copy.deepcopy(DOCUMENTS[case.vm])
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        where = draw(st.sampled_from(places(document) or [()]))
        if where:
            _change(draw, document, where)
    return case, document


def _change(draw: st.DrawFn, document: Any, where: tuple[Any, ...]) -> None:
    *way, last = where
    parent = document
    for key in way:
        parent = parent[key]
    match draw(st.sampled_from(["replace", "replace", "lose", "add", "double", "swap"])):
        case "replace":
            parent[last] = draw(VALUES)
        case "lose":
            del parent[last]
        case "add" if isinstance(parent, dict):
            parent[draw(st.text(max_size=8) | st.sampled_from(NAMES))] = draw(VALUES)
        case "double" if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        case _:
            other = draw(st.sampled_from(CASES))
            source: Any = DOCUMENTS[other.vm]
            for key in draw(st.sampled_from(places(source))):
                source = source[key]
            parent[last] = copy.deepcopy(source)


DOCUMENTS = {case.vm: list(yaml.load_all(case.vm.read_text(), yaml.CSafeLoader)) for case in CASES}
NAMES = sorted(
    {key for document in DOCUMENTS.values() for path in places(document) for key in path if isinstance(key, str)}
)


def write(path: Path, documents: list[Any]) -> None:
    text = yaml.dump_all(documents, Dumper=yaml.CSafeDumper, allow_unicode=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")


def outcome(case: Case, path: Path) -> str | None:
    """The XML of the manifest in `path` with the case's flags, or None where it is refused, in lines."""
    return text_or_lines(Case(case.name, path, case.flags).xml)


def _settings(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def text_or_lines(make: Callable[[], T], before: Callable[[], str] = str) -> T | None:
    """What is made, or None where it is refused, in at most 25 lines with those that were said `before`."""
    made, lines = None, tuple[str, ...]()
    try:
        made = make()
    except ProgramError as error:
        lines = error.lines
        assert lines
    said = [*before().splitlines(), *lines]
    assert len(said) <= 25, said
    assert all(line and len(line) < 2000 and one_line(line) == line for line in said), "a line is for people"
    return made


def test_a_mutated_manifest_is_valid_xml_or_lines(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "vm.yaml"
    schema = Draft202012Validator(json_schema())
    seen = {"rendered": 0, "refused": 0}

    @_settings(20_000 if pytestconfig.getoption("--thorough") else 1_000)
    @given(mutated())
    def check(found: tuple[Case, Any]) -> None:
        case, document = found
        write(path, document)
        xml = outcome(case, path)
        seen["refused" if xml is None else "rendered"] += 1
        if xml is None:
            return
        domain = etree.fromstring(xml)
        assert domain.find(".//evil") is None
        assert is_valid(domain), VALID.error_log
        assert all(map(schema.is_valid, read_input(path).vms)), "the JSON schema refuses what is rendered"

    check()
    assert min(seen.values()) > 50, seen


def test_a_mutated_manifest_has_a_pod_or_lines(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path, again = tmp_path / "vm.yaml", tmp_path / "again.yaml"
    seen = {"made": 0, "refused": 0}

    @_settings(20_000 if pytestconfig.getoption("--thorough") else 200)
    @given(mutated())
    def check(found: tuple[Case, Any]) -> None:
        _, document = found
        write(path, document)
        written = text_or_lines(lambda: text_of(path))
        seen["refused" if written is None else "made"] += 1
        if written is None:
            return
        config_map, *_, pod = yaml.load_all(written, yaml.CSafeLoader)
        again.write_text(*config_map["data"].values())
        assert read_manifest(again) == read_manifest(path), "the pod reads another VM"
        assert pod["kind"] == "Pod"
        assert more_than_allowed(pod) == []

    check()
    assert min(seen.values()) > 5, seen


def test_several_mutated_manifests_have_pods_or_lines(
    tmp_path: Path, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    """What keeps one from having a pod, and what is said of each, is never more than a page in all."""
    path = tmp_path / "vms.yaml"
    seen = {"made": 0, "refused": 0}

    @_settings(2_000 if pytestconfig.getoption("--thorough") else 100)
    @given(st.lists(mutated() | untouched(), min_size=2, max_size=4))
    def check(found: list[tuple[Case, Any]]) -> None:
        documents = [renamed(value, f"vm{number}") for number, (_, several) in enumerate(found) for value in several]
        write(path, documents)
        capfd.readouterr()

        def make() -> bool:
            pod(PodFlags(vm=path), LogFlags())
            return True

        made = text_or_lines(make, lambda: capfd.readouterr().err)
        seen["made" if made else "refused"] += 1

    check()
    assert min(seen.values()) > 5, seen


def untouched() -> st.SearchStrategy[tuple[Case, Any]]:
    return st.sampled_from(CASES).map(lambda case: (case, DOCUMENTS[case.vm]))


def renamed(document: Any, name: str) -> Any:
    """The document under this name, where it is a VM that has one."""
    if not isinstance(document, dict) or not str(document.get("kind")).startswith("VirtualMachine"):
        return document
    metadata = document.get("metadata")
    return {**document, "metadata": {**metadata, "name": name}} if isinstance(metadata, dict) else document


@_settings(300)
@given(st.data())
def test_a_mangled_text_is_valid_xml_or_lines(tmp_path: Path, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    text = case.vm.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 40)))
        middle = data.draw(
            st.sampled_from(
                [
                    b"",
                    b"&a ",
                    b"*a",
                    b"!!python/object:os.system ",
                    b"<<: ",
                    b"\x00",
                    b"\xff",
                    b"\t",
                    b"? ",
                    b"---\n",
                    b"%",
                ]
            )
            | st.binary(max_size=8)
        )
        text = text[:start] + middle + text[end:]
    path = tmp_path / "vm.yaml"
    path.write_bytes(text)
    xml = outcome(case, path)
    assert xml is None or is_valid(etree.fromstring(xml))


HEAD = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: vm}\nspec:\n  domain:\n"
MONSTERS = {
    "aliases of aliases": "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'x'}]\n" for n in range(40)),
    "a million keys": HEAD
    + "    resources:\n      requests:\n"
    + "".join(f"        k{n}: 1\n" for n in range(200_000)),
    "a list of nothing but errors": HEAD + f"    devices: {{gpus: [{', '.join(['1'] * 99_900)}]}}\n",
    "a long string": HEAD + f"    firmware: {{serial: {'x' * 2_900_000}}}\n",
    "deeply nested": HEAD + "    devices: " + "[" * 100_000,
    "a list of everything": HEAD + "    devices:\n      gpus:\n" + "      - {name: gpu, deviceName: a/b}\n" * 20_000,
    "more than a manifest": "#" * (4 << 20),
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_a_monster_is_a_few_lines_within_300_mb(monster: str, tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(MONSTERS[monster])
    command = f"ulimit -v 300000; exec {BIN}/gpu-launcher render {path} --env A=b"
    result = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=allowed(60)
    )
    assert (result.returncode, result.stdout) == (2, ""), result.stderr[:500]
    assert 1 <= result.stderr.count("\n") <= 25
