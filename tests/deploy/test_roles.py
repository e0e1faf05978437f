"""The roles for kubectl gpuvm, and the table of their rights in docs/kubectl.md. The lab tries them with tokens."""

from typing import Any

import pytest
import yaml

from tests.processes import ROOT

ROLES = {each["metadata"]["name"]: each for each in yaml.safe_load_all((ROOT / "deploy/roles/roles.yaml").read_text())}
PAGE = ROOT / "docs/kubectl.md"
HEAD = f"| rights on | {' | '.join(f'`{name}`' for name in ROLES)} |\n|{'---|' * (len(ROLES) + 1)}\n"


def rights(role: dict[str, Any]) -> dict[str, str]:
    """Return the verbs by resource, with its name if it is about one object alone."""
    return {
        f"{resource}{''.join(f' `{name}`' for name in rule.get('resourceNames', ()))}": ", ".join(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
    }


def test_the_table_of_rights_is_that_of_the_roles(request: pytest.FixtureRequest) -> None:
    roles = list(map(rights, ROLES.values()))
    rows = dict.fromkeys(resource for role in roles for resource in role)
    table = "".join(f"| {row} | {' | '.join(role.get(row, '') for role in roles)} |\n" for row in rows)
    before, found, after = PAGE.read_text().partition(HEAD)
    assert found, HEAD
    old, _, after = after.partition("\n\n")
    if request.config.getoption("--regenerate"):
        PAGE.write_text(f"{before}{HEAD}{table}\n{after}")
    else:
        assert f"{old}\n" == table, "run make test ARGS='--regenerate tests/deploy/test_roles.py'"


def test_who_looks_changes_nothing() -> None:
    verbs = {verb for rule in ROLES["gpuvm-viewer"]["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list"}


def test_an_owner_has_all_that_a_viewer_has_in_a_namespace() -> None:
    of_the_cluster = {"nodes", "resourceslices", "deviceclasses", "devicetaintrules"}
    owner, viewer = rights(ROLES["gpuvm-owner"]), rights(ROLES["gpuvm-viewer"])
    for resource in viewer.keys() - of_the_cluster:
        assert {*viewer[resource].split(", ")} <= {*owner[resource].split(", ")}, resource
