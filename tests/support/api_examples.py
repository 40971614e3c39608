"""Generator of duemq/http/examples.json: a request and a response of each operation of the API.

    python -m tests.support.api_examples

It runs the tests of the API, and records what they request and what brokers respond. Of each
operation, the response with the most fields is kept, then the shortest one.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from duemq.http.api import endpoints
from duemq.http.endpoints import PREFIX, Endpoint
from duemq.http.tokens import Tokens
from tests.support.packages import TOP

FILE: Final = TOP / "duemq" / "http" / "examples.json"
TESTS: Final = (
    "test_every_role.py",
    "test_api.py",
    "test_registry.py",
    "brokers/test_views.py",
    "brokers/test_audits.py",
    "brokers/test_migrations.py",
    "test_schedules.py",
)
RELOADED: Final = "ignore::pytest.PytestAssertRewriteWarning"  # `main` has imported the product
BYTES_MAX: Final = 3_000
ITEMS_MAX: Final = 1
TEMPORARY: Final = re.compile(r"/[^\s\"',]*pytest-of-[^/]+/pytest-\d+/[^/\s\"',]+")
SECRETS: Final = ("access_token",)
Example = dict[str, Any]


def table() -> tuple[Endpoint, ...]:
    """Return the endpoints of the API."""
    return endpoints(Tokens(time.monotonic))


class Recorder:
    """Examples by operation, from requests and their responses."""

    def __init__(self) -> None:
        self.examples: dict[str, Example] = {}
        self._patterns = [
            (each, re.compile(re.sub(r"{\w+}", "[^/]+", PREFIX + each.path))) for each in table()
        ]

    def note(self, response: httpx.Response) -> None:
        """Keep a response if it is a better example than those before."""
        request = response.request
        endpoint = self._endpoint(request.method, request.url.path)
        if endpoint is None or response.status_code != endpoint.status:
            return
        made = shortened({"response": json.loads(response.content)})
        if endpoint.body is not None:
            made = {"request": shortened(json.loads(request.content))} | made
        name = endpoint.handler.__name__
        if rank(made) > rank(self.examples.get(name, {})):
            self.examples[name] = made

    def _endpoint(self, method: str, path: str) -> Endpoint | None:
        for endpoint, pattern in self._patterns:
            if endpoint.method == method and pattern.fullmatch(path):
                return endpoint
        return None


def rank(example: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Return a key by which the best example is the largest."""
    text = json.dumps(example)
    return len(text) <= BYTES_MAX and bool(example), fields(example), -len(text)


def fields(value: Any) -> int:
    """Return the number of fields that have a value."""
    if isinstance(value, dict):
        return sum(map(fields, value.values()))
    if isinstance(value, list):
        return sum(map(fields, value))
    return int(value not in (None, ""))


def shortened(value: Any) -> Any:
    """Return a value with one item of each list, without secrets and temporary directories."""
    if isinstance(value, dict):
        return {key: "SECRET" if key in SECRETS else shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shortened(part) for part in value[:ITEMS_MAX]]
    return TEMPORARY.sub("/data", value) if isinstance(value, str) else value


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Let a recorder note the responses to all clients in the block."""
    at_once, later = httpx.Client.send, httpx.AsyncClient.send

    def send(client: httpx.Client, *words: Any, **more: Any) -> httpx.Response:
        response = at_once(client, *words, **more)
        recorder.note(response)
        return response

    async def send_later(client: httpx.AsyncClient, *words: Any, **more: Any) -> httpx.Response:
        response = await later(client, *words, **more)
        recorder.note(response)
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.Client, "send", send)
        patch.setattr(httpx.AsyncClient, "send", send_later)
        yield


def encoded(examples: Mapping[str, Example]) -> str:
    """Return the text of the file: an operation in each line, in the order of the document."""
    names = [endpoint.handler.__name__ for endpoint in table()]
    lines = [
        f"{json.dumps(name)}: {msgspec.json.encode(examples[name]).decode()}"
        for name in names
        if name in examples
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write the file; return the exit code."""
    recorder, folder = Recorder(), TOP / "tests" / "duemq" / "http"
    paths = [str(path) for name in TESTS if (path := Path(folder, name)).is_file()]
    with recording(recorder):
        options = ["-q", "-n0", "-p", "no:cacheprovider", "-W", RELOADED]
        code = pytest.main([*options, *paths, *sys.argv[1:]])
    FILE.write_text(encoded(recorder.examples), encoding="utf-8")
    missing = {each.handler.__name__ for each in table()} - recorder.examples.keys()
    sys.stdout.write(f"{len(recorder.examples)} operations; without an example: {missing}\n")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
