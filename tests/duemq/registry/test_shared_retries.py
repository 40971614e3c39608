"""Retry topics of several groups and topics: an account needs permissions for all of them."""

from __future__ import annotations

import pytest

from duemq.auth.model import Action
from duemq.auth.record_access import UnrestrictedAccess
from duemq.registry.groups import GroupConfig
from duemq.registry.shared_retries import SharedRetries, owners
from duemq_common.request import Request
from tests.support.fakes import FakeGroups, FakeTopics, fake_topic

OWN = ("a", "b_c")


class RecordedAccess(UnrestrictedAccess):
    """Access without restrictions; `checked` has the topics of records that were checked."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        assert actions == (Action.SUB,)
        self.checked.append(topic)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("%RETRY%a_b_c", [("a_b_c", ""), ("a", "b_c"), ("a_b", "c")]),
        ("%RETRY%a", [("a", "")]),
        ("%RETRY%a+b_c", [("a+b_c", ""), ("a+b", "c")]),
        ("%RETRY%_", [("_", ""), ("", "")]),
    ],
)
def test_owners(name: str, found: list[tuple[str, str]]) -> None:
    assert list(owners(name)) == found


@pytest.mark.finding("3S6")
@pytest.mark.parametrize(
    ("groups", "topics", "checked"),
    [
        (["a"], ["b_c"], []),
        (["a", "a_b"], ["b_c"], []),
        (["a"], ["b_c", "c"], []),
        (["a", "a_b"], ["b_c", "c"], ["%RETRY%a_b", "c"]),
        (["a", "a_b_c"], ["b_c"], ["%RETRY%a_b_c"]),
    ],
)
def test_the_permissions_of_all_that_exist_are_checked(
    groups: list[str], topics: list[str], checked: list[str]
) -> None:
    access = RecordedAccess()
    retries = SharedRetries(
        access,
        FakeTopics(*map(fake_topic, topics)),
        FakeGroups(*(GroupConfig(name=name) for name in groups)),
    )
    retries.check(Request(11, {}), "%RETRY%a_b_c", OWN)
    assert access.checked == checked
