"""SQL92 filters compared with Apache's filter module (5.3.3): same expressions, same properties."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from duemq.filters import Expression, FilterError
from duemq.filters.layout import UNDECIDED
from tests.duemq.filters.kernels.test_match import closure_value, kernel_value
from tests.interop.apache import OPEN_JDK, classpath
from tests.interop.programs import java_program
from tests.support.filter_texts import random_filter, random_property_text
from tests.support.requirements import skip_without

VERSION = "5.3.3"
MESSAGES = 4  # of each expression
JAVA_S = 500
LETTERS = "FTN?E"  # by the values of `duemq.filters.layout`
PLACE = re.compile(r"at line \d+, column \d+")
Case = tuple[str, list[str]]


def apache_responses(cases: list[Case], home: Path) -> list[str]:
    """Return the results of Apache's filter module, one line each."""
    folder = java_program("filters", VERSION)
    path = f"{folder}{os.pathsep}{classpath(VERSION)}"
    command = ["java", *OPEN_JDK, "-Xmx512m", f"-Duser.home={home}", "-cp", path, "Filters"]
    lines = (" ".join(word.encode().hex() for word in (text, *rest)) for text, rest in cases)
    done = subprocess.run(
        command,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=JAVA_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.splitlines()


def our_response(text: str, messages: list[str]) -> str:
    """Return our result as that program prints it; check that the kernel agrees, if it has one."""
    try:
        expression = Expression(text)
    except FilterError as fault:
        return "!" + str(fault)
    values = [closure_value(expression, message.encode()) for message in messages]
    if expression.program is not None:
        for message, value in zip(messages, values, strict=True):
            assert kernel_value(expression, message.encode()) in (value, UNDECIDED), text
    return "".join(LETTERS[value] for value in values)


@pytest.fixture
def expressions(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--filter-expressions"))


@pytest.mark.extended
def test_random_filters_have_apaches_values(expressions: int, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    cases = [
        (random_filter(random), [random_property_text(random) for _ in range(MESSAGES)])
        for _ in range(expressions)
    ]
    with skip_without():
        responses = apache_responses(cases, tmp_path)
    assert len(responses) == len(cases)
    letters: Counter[str] = Counter()
    for (text, messages), response in zip(cases, responses, strict=True):
        ours = our_response(text, messages)
        theirs = (
            "!" + bytes.fromhex(response[1:]).decode() if response.startswith("!") else response
        )
        letters.update("!" if theirs.startswith("!") else theirs)
        where = f"seed {seed}: {text!r} over {messages!r}: Apache {theirs!r}, DueMQ {ours!r}"
        if theirs.startswith("!"):
            assert ours.startswith("!"), where
        else:
            assert ours == theirs, where
    assert all(letters[letter] > expressions // 50 for letter in "!TFNE"), letters
