"""How workers send records."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

Send: TypeAlias = Callable[[str, int, bytes | None, bytes | None, Sequence[tuple[str, bytes]]], Awaitable[int]]
"""Sends one record (topic, partition, value, key, headers) and returns its offset once all in-sync replicas have it;
raises when they may not. As `tokenmill.app.worker.transport.BatchApp.send_record`."""
