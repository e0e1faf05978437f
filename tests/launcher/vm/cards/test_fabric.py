import pytest

from launcher.vm.cards.checks import other_driver


@pytest.mark.parametrize(
    ("declared", "manager", "said"),
    [
        ("580.126.09", "580.126.09", []),
        (None, "580.126.09", []),
        ("580.126.09", None, []),
        (
            "580.126.09",
            "580.159.03",
            ["is 580.126.09, and the Fabric Manager of this node is 580.159.03: CUDA would fail with error 802"],
        ),
    ],
)
def test_a_declared_driver_has_to_be_the_fabric_managers(
    declared: str | None, manager: str | None, said: list[str]
) -> None:
    environ = {} if manager is None else {"FABRIC_MANAGER_VERSION": manager}
    assert [finding.problem.wrong for finding in other_driver(declared, environ)] == said
