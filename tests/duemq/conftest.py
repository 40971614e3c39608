import asyncio

import pytest


@pytest.fixture
def run():
    """Run a coroutine in an event loop of its own."""

    def run_(coroutine):
        return asyncio.run(coroutine)

    return run_
