"""Public names that are imported at their first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("package", ["duemq", "duemq.client", "duemq.testing"])
def test_each_public_name_can_be_imported(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'duemq\.client' has no attribute 'Consumer'"):
        import_module("duemq.client").Consumer  # noqa: B018


def test_admin_does_not_load_the_push_consumer() -> None:
    program = (
        "import sys; from duemq.client import Admin;"
        "print('duemq.client.push_consumer' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("False\n", "")
