"""Interoperability of DueMQ with real clients and Apache's brokers."""

import pytest

pytest.register_assert_rewrite("tests.interop.checks")
