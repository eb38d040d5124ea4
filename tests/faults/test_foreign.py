"""What is not ours on our own topics: junk on control topics, messages of others on token topics."""

import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.conftest import Configured
from tests.faults.oracle import expected_chains, judge, read_control, read_topic, token_messages
from tests.faults.test_lost_logs import halted
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.mirrors import mirror_once
from tests.service import Raw, in_own_loop, reference_blocks, send, stored_blocks
from tokenmill.app.kafka.clients import producer
from tokenmill.app.settings import Settings
from tokenmill.errors import InputError
from tokenmill.recipe import GENESIS_KEY
from tokenmill.wire.message import HEADER_NAME, encode_header

BRACKETS: Final = b"[" * 200_000
KEYS: Final = (
    b"skip",
    b"skip-request",
    b"ignore",
    b"era",
    GENESIS_KEY,
    b"tokenizer/",
    b"tokenizer/x/0/1",
    b"else",
    b"",
)
VALUES: Final = (b"junk", b"[]", b"{}", b"\xff", BRACKETS, b'{"partition": [], "offset": 1e99}', b"")
PARTITIONS: Final = 2

pytestmark = pytest.mark.needs("minutes")


def documents(count: int) -> list[Raw]:
    """Return documents for both partitions: about a block each."""
    return [Raw(b"a document of some length %d " % number * 3, number % PARTITIONS) for number in range(count)]


def junk() -> list[Raw]:
    """Return records of every kind, none of which is what its key says."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    found = [Raw(value, 0, key) for key in KEYS for value in VALUES]
    return [*found, *(Raw(bomb, 0, b"tokenizer/%s/0/%d" % (b"0" * 64, count)) for count in (1, 2))]


def run(settings: Settings, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings' brokers and store."""
    arguments = ["--bootstrap-servers", settings.bootstrap_servers, "--raw-topics", settings.raw_topics[0]]
    return subprocess.run(
        [sys.executable, "-m", "tokenmill.app.cli", *command, *arguments, "--store", str(settings.store)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.fault("control-junk")
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
    for command in (
        ("verify",), ("eras", stream.name), ("inspect", "stream", stream.name), ("ledger",),
         ("skip", settings.raw_topics[0], "0", "0"),
    ):  # fmt: skip
        said = run(settings, *command)
        assert "Traceback" not in said.stderr, (command, said.stderr)
        assert said.returncode == (0 if command[0] != "skip" else InputError.exit_code), (command, said.stderr)
        assert stream.control_topic in said.stderr, command
    trial.held("loud", "alive")


def foreign(settings: Settings) -> list[Raw]:
    """Return messages that no reader takes: without our header, with a broken one, and of another stream."""
    message = token_messages(settings, expected_chains(settings)[0])[0]
    header, tokens = encode_header(message), bytes(message.tokens)
    return [
        Raw(b"somebody else's", 0, b"key"),
        Raw(tokens, 0, None, [(HEADER_NAME, header[:-1] + bytes([header[-1] ^ 1]))]),
        Raw(tokens, 0, None, [(HEADER_NAME, encode_header(replace(message, fingerprint=bytes(16))))]),
    ]


@pytest.mark.fault("foreign-messages")
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
        assert run(settings, "verify").returncode == 1

        refused = run(settings, "ignore", tokens, "0", "0")
        assert (refused.returncode, "readers take it" in refused.stderr) == (InputError.exit_code, True), refused.stderr
        for offset in places:
            assert run(settings, "ignore", tokens, "0", str(offset)).returncode == 0
        judge(service, trial)
        assert mill.running
        assert segment.running
        mill.kill()
        service.workers.remove(mill)
        service.mill()
        send(settings, documents(20))
        judge(service, trial)
        service.stop()
    verified = run(settings, "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "ignore list" in verified.stdout + verified.stderr
    store = tmp_path / "mirrored"
    code, said = mirror_once(settings, store)
    assert code == 0, said
    trial.held("loud", "alive")


@pytest.mark.fault("foreign-messages")
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
        assert f"is open at offset {len(read_topic(settings, stream.tokens_topic, 0))} of" in str(
            mill.partitions[f"{raw_topic}/0"]["waiting"]
        )
        other = (stream.name, 1)
        wanted = len(reference_blocks(settings)[other])
        service.wait_until(lambda: stored_blocks(settings, [other])[other] == wanted)
        in_own_loop(abort)
        judge(service, trial)
        assert all(worker.running for worker in service.workers)
        service.stop()
    trial.held("loud", "alive")
