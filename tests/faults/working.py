"""A service as most fault tests have it: with as many workers of one role as of the other."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.service import Service
from tokenmill.app.settings import Settings


@contextmanager
def working(settings: Settings, each: int = 1) -> Iterator[Service]:
    """Run so many mills, then so many segment workers; their logs are beside the store."""
    with Service(settings, settings.store.parent) as service:
        service.mill(each)
        for _ in range(each):
            service.segment()
        yield service
