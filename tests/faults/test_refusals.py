"""What a worker cannot work with: settings and stores, junk on control topics, messages of others on token topics."""

import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from tests import commands
from tests.commands import Ended
from tests.faults.conftest import Configured
from tests.faults.oracle import judge, read_control, read_topic, token_messages
from tests.faults.serving import halted, working
from tests.faults.test_two_at_once import settle_first
from tests.faults.trial import Trial
from tests.service import Raw, in_own_loop, mirror_once, reference_blocks, send, stored_blocks
from tokenmill.app.kafka.clients import producer
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.errors import InputError
from tokenmill.recipe import GENESIS_KEY, Genesis
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.message import HEADER_NAME, encode_header


def run(role: str, settings: Settings, directory: Path, **environment: str) -> Ended:
    return commands.run([role], directory / f"{role}.log", {**environment, **settings.environment()}, directory)


def assert_refused(ended: Ended, code: int, words: str, trial: Trial) -> None:
    """Check the code, and that the reason is said once, without a traceback."""
    assert ended.code == code, ended.said
    assert ended.said.count(words) == 1, ended.said
    assert "Traceback" not in ended.said
    trial.fired("refused")
    trial.held("loud")


@pytest.mark.fault("settings-changed")
def test_unknown_setting_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A misspelt setting is named, with the one that was meant."""
    assert_refused(run("mill", configured(), tmp_path, TOKENMILL_TOKENISER="bytes"), 2, "TOKENMILL_TOKENISER", trial)


MISSING: Final[dict[str, tuple[dict[str, Any], int, str]]] = {
    "tokenizer": ({"tokenizer": ""}, 2, "no tokenizer is set: set tokenizer to"),
    "broker": ({"bootstrap_servers": "127.0.0.1:1"}, 3, "no broker answers at 127.0.0.1:1; start one with"),
    "topic": ({"raw_topics": ("nowhere",)}, 4, "topic nowhere does not exist: create it with"),
}
"""What is changed of good settings, the exit code, and what is said."""


@pytest.mark.fault("settings-changed")
@pytest.mark.parametrize(("role", "what"), [("mill", "tokenizer"), *product(("mill", "segment"), ("broker", "topic"))])
def test_what_is_missing_is_named(configured: Configured, tmp_path: Path, trial: Trial, role: str, what: str) -> None:
    """A tokenizer, which no mill guesses; an address where nobody answers; a topic; each with what helps."""
    changes, code, words = MISSING[what]
    settings = configured().model_copy(update=changes)
    assert_refused(run(role, settings, tmp_path), code, words, trial)


@pytest.mark.fault("settings-changed")
def test_every_setting_that_decides_tokens_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Another tokenizer, block length, split, filter or transform would be another stream: each is named.

    A mill with such settings ends, and says what gives the new ones a stream of their own.
    """
    # The limit of a text is set, for its default follows from the tokenizer, and would be named as well.
    settings = configured().model_copy(update={"max_text_bytes": 1 << 20})
    in_own_loop(lambda: settle_first(settings))
    train_tokenizer(["some text to learn from"], vocabulary_size=300).save(str(tmp_path / "tokenizer.json"))
    changes: dict[str, object] = {
        "tokenizer": str(tmp_path / "tokenizer.json"),
        "sequence_length": 31,
        "splits": {"train": 900, "validation": 100},
        "normalize": "NFC",
        "function": "tests.faults.lying_engine:unchanged",
        "decode": "json",
    }
    for name, value in changes.items():
        changed = settings.model_copy(update={name: value})
        error = in_own_loop(lambda: settle_first(changed))  # noqa: B023 - called at once
        assert error is not None, name
        assert "stream_suffix" in str(error)
        assert f"({name}: the stream has " in str(error)
        assert "; " not in str(error)
        trial.fired(f"{name} changed")
    ended = run("mill", settings.model_copy(update={"min_chars": 7}), tmp_path)
    assert_refused(ended, 5, "was settled with other settings", trial)
    assert "min_chars" in ended.said
    assert "stream_suffix" in ended.said


@pytest.mark.fault("settings-changed")
def test_store_of_another_stream_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A store that holds a stream of the same name with another fingerprint is not touched."""
    settings = configured(splits={"train": 1000})
    in_own_loop(lambda: settle_first(settings))
    (stream,) = settings.streams()
    plan = plan_topic(settings.model_copy(update={"min_chars": 7}), stream.raw_topic)
    genesis = Genesis(stream.name, plan.recipes[stream], (0,), settings.segment_blocks)
    Store.open_or_create(settings.store).add_stream(StreamInfo.from_genesis(genesis, settings.segment_blocks), None)
    assert_refused(run("segment", settings, tmp_path), 5, "holds a stream made with other settings", trial)


@pytest.mark.fault("settings-changed")
def test_copied_store_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A copy would share its consumer group with the original; the file to remove is named."""
    settings = configured()
    Store.open_or_create(tmp_path / "original")
    shutil.copytree(tmp_path / "original", settings.store)
    ended = run("segment", settings, tmp_path)
    assert_refused(ended, 6, "it gets an identity (and a consumer group) of its own", trial)


KEYS: Final = (*b"skip skip-request ignore era tokenizer/ tokenizer/x/0/1 else".split(), GENESIS_KEY, b"")
VALUES: Final = (b"junk", b"[]", b"{}", b"\xff", b"[" * 200_000, b'{"partition": [], "offset": 1e99}', b"")
PARTITIONS: Final = 2


def documents(count: int) -> list[Raw]:
    """Return documents for both partitions: about a block each."""
    return [Raw(b"a document of some length %d " % number * 3, number % PARTITIONS) for number in range(count)]


def junk() -> list[Raw]:
    """Return records of every kind, none of which is what its key says."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    found = [Raw(value, 0, key) for key in KEYS for value in VALUES]
    return [*found, *(Raw(bomb, 0, b"tokenizer/%s/0/%d" % (b"0" * 64, count)) for count in (1, 2))]


def command(settings: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--bootstrap-servers", settings.bootstrap_servers, "--raw-topics", settings.raw_topics[0]]
    return subprocess.run(
        [sys.executable, "-m", "tokenmill.app.cli", *words, *arguments, "--store", str(settings.store)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.fault("control-junk")
@pytest.mark.needs("minutes")
def test_junk_on_control_topics_stops_nobody(configured: Configured, trial: Trial) -> None:
    """Before the stream is settled, while workers run, and for those that start later; it is named, and goes on."""
    settings = configured(PARTITIONS, splits={"train": 1000}, session_timeout=3.0)
    (stream,) = settings.streams()
    send(settings, junk(), stream.control_topic)
    with working(settings) as service:
        mill, segment = service.workers
        send(settings, documents(40))
        service.wait_until_complete()
        send(settings, junk(), stream.control_topic)
        trial.fired("junk on a control topic", 2 * len(junk()))
        service.wait_until(lambda: all("is ignored" in worker.log for worker in (mill, segment)))
        send(settings, documents(40))
        service.wait_until_complete()
        assert all(worker.running for worker in service.workers)
        for worker in (mill, segment):
            worker.kill()
        (mill,), segment = service.mill(), service.segment()
        send(settings, documents(40))
        judge(service, trial)
        assert mill.log.count("is ignored") == read_control(settings, stream).junk + 2 * len(VALUES)
        assert mill.log.count("b'era'") == 2 * len(VALUES)
        assert f'"topic": "{stream.control_topic}"' in mill.log
        service.stop()
    for words in (
        ("verify",), ("eras", stream.name), ("inspect", "stream", stream.name), ("ledger",),
         ("skip", settings.raw_topics[0], "0", "0"),
    ):  # fmt: skip
        said = command(settings, *words)
        assert "Traceback" not in said.stderr, (words, said.stderr)
        assert said.returncode == (0 if words[0] != "skip" else InputError.exit_code), (words, said.stderr)
        assert stream.control_topic in said.stderr, words
    trial.held("loud", "alive")


def foreign(settings: Settings) -> list[Raw]:
    """Return messages that no reader takes: without our header, with a broken one, and of another stream."""
    message = token_messages(settings, settings.streams()[0])[0]
    header, tokens = encode_header(message), bytes(message.tokens)
    return [
        Raw(b"somebody else's", 0, b"key"),
        Raw(tokens, 0, None, [(HEADER_NAME, header[:-1] + bytes([header[-1] ^ 1]))]),
        Raw(tokens, 0, None, [(HEADER_NAME, encode_header(replace(message, fingerprint=bytes(16))))]),
    ]


@pytest.mark.fault("foreign-messages")
@pytest.mark.needs("minutes")
@pytest.mark.parametrize("runs", [False, True])
def test_foreign_messages_halt_their_partition_until_they_are_ignored(
    configured: Configured, tmp_path: Path, trial: Trial, *, runs: bool
) -> None:
    """Mill and store stand there and say which command helps; the other partition goes on, and then all by itself.

    Also where the mill ``runs`` while they are written: it meets them beside its next message, and does not end.
    """
    settings = configured(PARTITIONS, splits={"train": 1000}, session_timeout=3.0)
    (stream,), (raw_topic,) = settings.streams(), settings.raw_topics
    tokens = stream.tokens_topic
    with working(settings) as service:
        mill, segment = service.workers
        send(settings, documents(20))
        service.wait_until_complete()
        if not runs:
            mill.kill()
        last = len(read_topic(settings, tokens, 0))
        send(settings, foreign(settings), tokens)
        places = [last, last + 1, last + 2]
        trial.fired("foreign message", len(places))
        if not runs:
            service.workers.remove(mill)
            (mill,) = service.mill()
        else:
            send(settings, documents(20))
        service.wait_until(lambda: bool(halted(mill, f"{raw_topic}/0") and halted(segment, f"{tokens}/0")))
        for reason in (halted(mill, f"{raw_topic}/0"), halted(segment, f"{tokens}/0")):
            assert f"`tokenmill ignore {tokens} 0 {places[0]}`" in reason
        send(settings, documents(20))
        other = (stream.name, 1)
        wanted = len(reference_blocks(settings)[other])
        service.wait_until(lambda: stored_blocks(settings, [other])[other] == wanted)
        assert wanted > 0
        assert command(settings, "verify").returncode == 1

        refused = command(settings, "ignore", tokens, "0", "0")
        assert (refused.returncode, "readers take it" in refused.stderr) == (InputError.exit_code, True), refused.stderr
        for offset in places:
            assert command(settings, "ignore", tokens, "0", str(offset)).returncode == 0
        judge(service, trial)
        assert mill.running
        assert segment.running
        mill.kill()
        service.workers.remove(mill)
        service.mill()
        send(settings, documents(20))
        judge(service, trial)
        service.stop()
    verified = command(settings, "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "ignore list" in verified.stdout + verified.stderr
    code, said = mirror_once(settings, tmp_path / "mirrored")
    assert code == 0, said
    trial.held("loud", "alive")


@pytest.mark.fault("foreign-messages")
@pytest.mark.needs("minutes")
def test_a_transaction_of_others_holds_up_its_partition_until_it_ends(configured: Configured, trial: Trial) -> None:
    """The mill says where it is open, does not take its own messages behind it for lost, and goes on by itself."""
    settings = configured(PARTITIONS, splits={"train": 1000}, session_timeout=3.0)
    (stream,), (raw_topic,) = settings.streams(), settings.raw_topics
    options: dict[str, Any] = {"transactional_id": f"others-{raw_topic}", "transaction_timeout_ms": 300_000}

    async def begin() -> None:
        async with producer(settings, **options) as client:
            await client.begin_transaction()
            await client.send_and_wait(stream.tokens_topic, b"not ours", partition=0)

    async def abort() -> None:  # as every next producer of that name does
        async with producer(settings, **options):
            pass

    with working(settings) as service:
        mill, _ = service.workers
        send(settings, documents(20))
        service.wait_until_complete()
        in_own_loop(begin)
        trial.fired("transaction of others")
        send(settings, documents(20))
        service.wait_until(lambda: bool(mill.partitions[f"{raw_topic}/0"]["waiting"]))
        waiting = str(mill.partitions[f"{raw_topic}/0"]["waiting"])
        assert f"is open at offset {len(read_topic(settings, stream.tokens_topic))} of" in waiting
        other = (stream.name, 1)
        wanted = len(reference_blocks(settings)[other])
        service.wait_until(lambda: stored_blocks(settings, [other])[other] == wanted)
        in_own_loop(abort)
        judge(service, trial)
        assert all(worker.running for worker in service.workers)
        service.stop()
    trial.held("loud", "alive")
