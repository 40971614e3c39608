"""Seeded simulation of a whole broker."""

import pytest

pytest.register_assert_rewrite("tests.simulation.steps", "tests.simulation.rig")
