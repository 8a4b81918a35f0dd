"""Fixtures of real hosts. Where none can be made their tests are skipped with the reason; in CI that is a failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import MACHINE_CACHE

from . import image
from .bed import Bed, Host


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """Where hosts are made. Everything is gone when the session ends."""
    try:
        image.prepare()
        shared = image.root_file_system(MACHINE_CACHE)
    except image.CannotRun as reason:
        if os.environ.get("CI") or os.environ.get("KDEPLOY_TEST_HOSTS") == "required":
            pytest.fail(f"tests on hosts are required here: {reason}")
        pytest.skip(str(reason))
    made = Bed.make(shared)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us so wants nothing left behind
    try:
        yield made
    finally:
        made.close()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def debian(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Host]:
    """One booted host of this test's own."""
    with bed.host(f"d{abs(hash(request.node.nodeid)) % 10**8}") as host:
        yield host
