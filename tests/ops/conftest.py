from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncloader.flow.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with Engine("test-engine") as engine:
        yield engine
