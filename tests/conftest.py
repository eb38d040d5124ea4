"""What all tests share: one real Kafka broker, topics with names of their own, and how hard Hypothesis tries."""

import asyncio
import gc
import itertools
import logging
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
import structlog
from aiokafka.admin import NewTopic
from aiokafka.errors import for_code
from hypothesis import HealthCheck, settings

from tests.service import in_own_loop
from tests.shared_broker import WORKER, shared_broker, shared_directory
from tests.warm_up import VARIABLE, java_options
from tokenmill.app.kafka.clients import admin
from tokenmill.app.local import broker as broker_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import collect_seldom
from tokenmill.app.settings import Settings

# As in workers and commands: most of what tests load and make is no garbage.
collect_seldom()

# Objects of the parent are never freed in a fork: libraries whose threads are missing there may crash.
os.register_at_fork(after_in_child=gc.freeze)

# No deadline and no complaint about slow data: both measure the machine, and other programs run on it. 10 examples
# keep the whole of the tests within minutes on two cores; `make faults` tries 200 of each property;
# `--hypothesis-profile=thorough` is for a night.
settings.register_profile("tokenmill", deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("tokenmill"), max_examples=200)
settings.register_profile("thorough", settings.get_profile("tokenmill"), max_examples=10_000)
settings.register_profile("quick", settings.get_profile("tokenmill"), max_examples=8)
settings.load_profile("tokenmill")

os.environ.setdefault(VARIABLE, java_options())

# Of all ports that brokers may have, each process draws from its own share: several secured brokers start at once. The
# 16 shares are more than there are processes of tests.
broker_settings.PORTS = broker_settings.PORTS[int(os.environ.get(WORKER, "gw0")[2:]) % 16 :: 16]

# In the background of a script Ctrl-C is ignored, and so it would be by all processes whose tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count(1)

BROKERS: Final = {"broker", "secured"}
"""Fixtures that start a Kafka; a test that uses them through others has them as well."""
SLOW_FOLDERS: Final = {"faults", "stack", "peers", "bucket", "local", "examples", "benchmarks", "vocabularies"}
"""Tests of whole programs, each of which takes seconds and more."""
SHARED: Final = ("milled", "secured")
"""Fixtures that start a service or a broker, once in each process that has a test which uses them."""
LONGEST: Final = (*SHARED, "tests/test_readme.py", "tests/docs/test_produce_page.py", "tests/examples/test_labs.py")
"""Groups of tests (`pytest_itemcollected`) that take a minute and more, and so are begun with."""
LONG_FOLDERS: Final = {"faults", "simulation", "benchmarks"}
LONG_MARKS: Final = ("fault", "needs", "cases", "hypothesis")
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of this user's own in it


def pytest_addoption(parser: pytest.Parser) -> None:
    long = "what is long or has a long form (`make faults`); over an hour"
    parser.addoption("--full", action="store_true", help=long)
    parser.addoption("--quick", action="store_true", help="no broker, no service, few examples (`make test-quick`)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", None) is None:
        for option in ("full", "quick"):
            if config.getoption(f"--{option}"):
                settings.load_profile(option)
    # pytest's folder is in memory, unless it is named: a disk, which tests sync to, takes several times as long. They
    # write a fraction of a gigabyte.
    if config.getoption("--quick") and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 1 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--quick") and collection_path.name in SLOW_FOLDERS else None


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(_group(item)))


class TopicFactory(Protocol):
    """Creates a topic and returns its name, which no other test uses. Works in plain tests and in coroutines.

    ``config`` holds the topic's settings with underscores for Kafka's dots: ``topic(2, retention_ms=-1)``.
    """

    def __call__(self, partitions: int = 1, **config: object) -> str:
        """Create the topic with that many partitions; on return it can be used."""


@pytest.hookimpl(trylast=True)  # Hypothesis marks its tests in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose, and put in order, the tests of a run.

    A plain run leaves out what it has no means or time for (`needs`), and has some of the cases of tests with many slow
    ones (`cases`). A full run has those, from whatever folder, all that has a long form, and the properties, with more
    examples; not what would be the same again. A quick run leaves out whole programs as well, and whatever has a broker
    or is marked as slow.
    """
    if config.getoption("--full"):
        _keep(config, items, _is_long)
    else:
        _keep(config, items, lambda item: item.get_closest_marker("needs") is None)
        some = _some_cases(items)
        _keep(config, items, lambda item: item.get_closest_marker("cases") is None or item in some)
    if config.getoption("--quick"):
        _keep(config, items, _is_quick)
    places = _places(items)
    items.sort(key=lambda item: places[_group(item)])


def _some_cases(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return as many of each test's cases as its marker says, from all over its parameters, in any run the same."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    some = set()
    for cases in by_test.values():
        if marker := cases[0].get_closest_marker("cases"):
            (number,) = marker.args
            some |= {cases[len(cases) * at // number] for at in range(number)}
    return some


def _places(items: Iterable[pytest.Item]) -> dict[str, float]:
    """Return by which number the groups are ordered: what is longest has the lowest, faults are before others.

    Tests that wait for real processes are spread between those that compute, so that the cores always have work. The
    last part of the run has none that wait: one process would be left with them.
    """
    waiting = dict.fromkeys(map(_group, items), False)
    waiting |= {_group(item): True for item in items if not _is_quick(item)}
    places = {group: -1 / (1 + LONGEST.index(group)) for group in waiting if group in LONGEST}
    for waits, share in ((True, 0.8), (False, 1.0)):
        groups = [group for group, found in waiting.items() if found is waits and group not in places]
        groups.sort(key=lambda group: not group.startswith("tests/faults"))
        places |= {group: share * number / len(groups) for number, group in enumerate(groups)}
    return places


def _group(item: pytest.Item) -> str:
    """Return what one process runs: the tests that use one of `SHARED`, or the others of a file."""
    shared = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
    return shared[0] if shared else item.nodeid.partition("::")[0]


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    kept = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = kept


def _is_long(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, LONG_MARKS)) or bool(LONG_FOLDERS & set(item.path.parts))


def _is_quick(item: pytest.Item) -> bool:
    whole = BROKERS & set(getattr(item, "fixturenames", ())) or SLOW_FOLDERS & set(item.path.parts)
    return not (whole or item.get_closest_marker("slow"))


@contextmanager
def logging_kept() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Leave logging as it was: whatever sets it up here writes to an output that is closed for the next test."""
    with logging_kept():
        yield


@pytest.fixture
def hangup() -> Iterator[None]:
    """Let SIGHUP do what it does by default, also where the tests are run by ``nohup``, which has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One real broker for the whole run. Tests that restart, kill or pause a broker start one of their own."""
    with shared_broker(shared_directory(tmp_path_factory.getbasetemp())) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> TopicFactory:
    return topics_on(broker, request.node.name)


def topics_on(broker: Broker, prefix: str) -> TopicFactory:
    settings = Settings(bootstrap_servers=broker.bootstrap_servers)

    def create(partitions: int = 1, **config: object) -> str:
        name = f"{re.sub('[^A-Za-z0-9-]+', '-', prefix)[:60]}-{os.environ.get(WORKER, '')}{next(_numbers)}"
        topic_configs = {key.replace("_", "."): str(value) for key, value in config.items()}
        in_own_loop(lambda: _create(settings, NewTopic(name, partitions, 1, topic_configs=topic_configs)))
        return name

    return create


async def _create(settings: Settings, topic: NewTopic) -> None:
    """Create ``topic`` and wait until each partition has a leader; until then clients would be told it is unknown."""
    async with admin(settings) as client:
        for name, code, message in (await client.create_topics([topic])).topic_errors:
            if code:
                raise for_code(code)(f"{name}: {message}")
        leaders: list[int] = []
        while len(leaders) < topic.num_partitions or min(leaders) < 0:
            await asyncio.sleep(0.02)  # Kafka tells nobody; one has to ask
            (told,) = await client.describe_topics([topic.name])
            leaders = [partition["leader"] for partition in told["partitions"]]
