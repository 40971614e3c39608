"""Real clients and Apache's own broker against ours."""

import pytest

pytest.register_assert_rewrite("tests.interop.checks")
