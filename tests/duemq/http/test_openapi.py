"""The OpenAPI document: each response of a real broker conforms to it, whatever is requested."""

from __future__ import annotations

import time
import warnings
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from duemq.http.api import endpoints
from duemq.http.openapi import document
from duemq.http.tokens import Tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

schema = schemathesis.openapi.from_dict(document(endpoints(Tokens(time.monotonic))))
SHORT, LONG = 3, 200
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]


def check(case: schemathesis.Case[Any], client: httpx.Client) -> None:
    case.call_and_validate(base_url=str(client.base_url), checks=CHECKS)


@schema.parametrize()
@settings(
    max_examples=SHORT,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=QUIET,
)
def test_responses_conform(case: schemathesis.Case[Any], shared_api: httpx.Client) -> None:
    check(case, shared_api)


@pytest.mark.extended
@schema.parametrize()
@settings(max_examples=LONG, deadline=None, database=None, suppress_health_check=QUIET)
def test_responses_conform_to_many_requests(
    case: schemathesis.Case[Any], shared_api: httpx.Client
) -> None:
    check(case, shared_api)


def test_the_document_is_served(shared_api: httpx.Client) -> None:
    served = shared_api.get("/api/v1/openapi.json").json()
    assert served["openapi"].startswith("3.1")
    assert {"/api/v1/messages", "/api/v1/pending/cancel"} <= served["paths"].keys()
    names = [
        operation["operationId"] for path in served["paths"].values() for operation in path.values()
    ]
    assert len(names) == len(set(names))
