"""Rows of request codes."""

from __future__ import annotations

import pytest

from duemq.auth.accesses import Rule
from duemq.auth.model import Action
from duemq.auth.plain_permissions import administrator
from duemq.auth.request_table import ROWS, ROWS_BY_MODULE, row_of
from duemq_common.codes import RequestCode

SENT_BY_BROKERS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
"""Requests to clients; the others without a row are requests to a controller."""


def test_each_code_that_is_handled_has_one_row() -> None:
    assert sum(map(len, ROWS_BY_MODULE.values())) == len(ROWS)
    without = set(RequestCode) - ROWS.keys() - SENT_BY_BROKERS
    assert all(code.name.startswith("CONTROLLER_") for code in without)


@pytest.mark.parametrize("code", [10, 11, 310, 200_050, 34])
def test_sends_pulls_and_pops_wait_for_no_kernels(code: int) -> None:
    assert not row_of(code).needs_kernels


@pytest.mark.parametrize("code", [12, 33, 29, 37, 370, 9011, 9012, 9013])
def test_searches_and_decisions_wait_for_kernels(code: int) -> None:
    assert row_of(code).needs_kernels


def test_a_code_without_a_row_needs_an_administrator() -> None:
    row = row_of(77_001)
    assert row.always
    assert row.plain is administrator
    assert row.permission is not None
    assert [each.actions for each in row.permission({}, b"", "c")] == [(Action.UPDATE,)]


def test_a_rule_to_send_or_to_consume_has_a_permission_of_acl_1() -> None:
    assert not [
        row.code
        for row in ROWS.values()
        if isinstance(row.permission, Rule)
        and row.permission.action in (Action.PUB, Action.SUB)
        and row.plain is None
    ]
