"""The manifests that others publish (tests/published.py): the corpus is what it says, and how much of it is taken."""

import re

import pytest

from tests.published import FEATURES, Row, manifests, table

#: Shares of the manifests that are to be taken, in percent; they only rise.
RENDERED = 97
PODS = 97

ALL = manifests()


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return table()


def test_each_says_where_it_is_from_and_has_a_vm_or_says_why_it_is_refused() -> None:
    for manifest in ALL:
        assert manifest.source, manifest.name
        assert manifest.vms or manifest.refused, manifest.name


def test_each_is_there_once() -> None:
    names: dict[str, list[str]] = {}
    for manifest in ALL:
        names.setdefault(re.sub(r"^#.*\n", "", manifest.text, flags=re.MULTILINE), []).append(manifest.name)
    assert [same for same in names.values() if len(same) > 1] == []


def test_what_they_name_is_nobodys() -> None:
    for manifest in ALL:
        hosts = re.findall(r"(?:https?|docker)://([^/\s\"']+)", manifest.text)
        images = re.findall(r"^[\s-]*\"?image\"?: [\"']?([^/\s\"']+)", manifest.text, re.MULTILINE)
        assert all(re.fullmatch(r"(.+\.)?example\.com(:\d+)?", host) for host in hosts), (manifest.name, hosts)
        assert set(images) <= {"registry.example.com", "ubuntu"}, (manifest.name, images)  # ubuntu: another API's
        assert "PRIVATE KEY" not in manifest.text, manifest.name


def test_each_feature_that_is_counted_is_there() -> None:
    for feature, has in FEATURES.items():
        assert any(map(has, ALL)), feature


def test_what_is_rightly_refused_is_refused(rows: tuple[Row, ...]) -> None:
    taken = [row.manifest.name for row in rows if row.manifest.refused and not (row.render.error or row.pod.error)]
    assert taken == []


def test_an_error_is_one_line(rows: tuple[Row, ...]) -> None:
    errors = [error for row in rows for error in (row.render.error, row.pod.error) if error]
    assert all(error and "\n" not in error and "Traceback" not in error for error in errors)


def test_of_the_others_this_many_render_and_become_pods(rows: tuple[Row, ...]) -> None:
    having = [row for row in rows if not row.manifest.refused]
    assert 100 * sum(row.render.error is None for row in having) >= RENDERED * len(having)
    assert 100 * sum(row.pod.error is None for row in having) >= PODS * len(having)
