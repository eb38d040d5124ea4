"""Which private parts of libraries the modules use that go between: by their source, for whoever upgrades a library."""

import ast
from inspect import getsource
from types import ModuleType
from typing import Final

import pytest

from tokenmill.app.kafka import cluster, fastpath, fetched_batches
from tokenmill.app.worker import transport

USED: Final[dict[str, tuple[tuple[ModuleType, ...], str]]] = {
    "cluster, of aiokafka": (
        (cluster,),
        "_client _conns _create_fetch_waiter _fetch_task _fetcher _isolation_level _metadata_update _requests",
    ),
    "the fast path, of aiokafka": (
        (fetched_batches, fastpath),
        """
        _aborted_producers _check_crcs _consume_aborted_up_to _contains_abort_marker _isolation_level _records
        _relative_offset _replace _tp
        """,
    ),
    "the transport, of Faust and aiokafka": (
        (transport,),
        """
        _auto_offset_reset _buffered_partitions _consumer _consumer_timeout _coordinator _ensure_consumer
        _ensure_producer _fetch_max_wait_ms _fetch_min_bytes _fetcher _get_active_partitions _getmany _isolation_level
        _stopped _max_partition_fetch_bytes _subscription _tp_index _value_deserializer
        """,
    ),
}


def used(module: ModuleType) -> tuple[set[str], set[str]]:
    """Return the attributes that a module gets or sets, and those that it defines itself."""
    names: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(ast.parse(getsource(module))):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            own |= {node.attr} if on_self and isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names, own


@pytest.mark.parametrize("who", USED)
def test_private_parts_of_libraries_are_these(who: str) -> None:
    modules, expected = USED[who]
    names, own = (set[str]().union(*found) for found in zip(*map(used, modules), strict=True))
    private = {name for name in names - own if name.startswith("_") and not name.startswith("__")}
    assert private == set(expected.split())
