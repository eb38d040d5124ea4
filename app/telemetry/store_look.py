"""What ``/api/store`` answers: the newest blocks of a store as text, how long documents are, and who trains on them.

A disk or a trainer may hang, so a thread of its own looks, and only after somebody asked; an answer is what it found
last. `app.telemetry.server.may_see_texts` says who gets texts.
"""

import http.client
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tokenmill.errors import TokenMillError
from tokenmill.store import PartitionReader, open_partition, partitions_in, read_stream, read_tokenizer, streams_in
from tokenmill.wire.pieces import PADDING

from ..milling.tokenizers import REFERENCE, Engine, TokenizerFile, open_engine
from ..settings import Settings

FRESH_SECONDS: Final = 10.0
STREAMS: Final = 20
"""Of a store that are looked at ..."""
PARTITIONS: Final = 4
"""... those of each, which hold most blocks ..."""
BLOCKS: Final = 32
"""... and the newest blocks of each, in which documents are measured."""
SHOWN_TOKENS: Final = 1024
"""Of the newest block, shown as text."""
PREFIX: Final = "tokenmill_trainer_"
FIGURES: Final = frozenset({"step", "behind_eras", "tokens_total", "wait_seconds_total", "work_seconds_total"})


class StoreLook:
    """`document` answers at once, from any thread."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._known: Mapping[str, Any] = {"streams": {}, "trainers": []}
        self._engines: dict[bytes, Engine] = {}
        self._texts = False
        self._looked = -FRESH_SECONDS
        self._thread = threading.Thread()

    def document(self, *, texts: bool) -> Mapping[str, Any]:
        """Return what was found last, and look again where that is old; ``texts``: from now on for texts as well."""
        fresh = self._now() - self._looked < FRESH_SECONDS and texts <= self._texts
        if not fresh and not self._thread.is_alive():
            self._texts |= texts
            self._looked = self._now()
            self._thread = threading.Thread(target=self._look, name="store look", daemon=True)
            self._thread.start()
        return self._known

    def _look(self) -> None:
        try:
            names = streams_in(self._settings.store)
        except (TokenMillError, OSError):  # the log of the worker that has the store says it
            names = []
        streams = {name: self._stream(name) for name in sorted(names)[:STREAMS]}
        trainers = [row for address in self._settings.trainers for row in _trainers(address)]
        self._known = {"streams": streams, "trainers": trainers}

    def _stream(self, name: str) -> dict[str, Any]:
        store = self._settings.store
        try:
            readers = [(open_partition(store, name, number), number) for number in partitions_in(store, name)]
            fullest = sorted(readers, key=lambda one: one[0].blocks, reverse=True)[:PARTITIONS]
            lengths = sum((_lengths(reader) for reader, _ in fullest), Counter[int]())
            found: dict[str, Any] = {"lengths": sorted(lengths.items())}
            if self._texts and fullest and fullest[0][0].blocks > fullest[0][0].first_block:
                found["newest"] = self._newest(store, name, *fullest[0])
        except TokenMillError as error:
            return {"error": error.brief}
        except OSError as error:
            return {"error": error.strerror or "the disk does not answer"}
        return found

    def _newest(self, store: Path, name: str, reader: PartitionReader, partition: int) -> dict[str, Any]:
        info = read_stream(store, name)
        if info.fingerprint not in self._engines:
            self._engines[info.fingerprint] = open_engine(TokenizerFile(name, read_tokenizer(store, info)), REFERENCE)
        engine, number = self._engines[info.fingerprint], reader.blocks - 1
        tokens = reader.read(number)[:SHOWN_TOKENS].tolist()
        pieces = [
            {"offset": one.offset, "position": one.position, "text": engine.decode(tokens[one.start : one.stop])}
            for one in reader.documents(number)
            if one.start < len(tokens)
        ]
        shown = {"tokens": reader.block_tokens, "shown": len(tokens), "pieces": pieces}
        return {"partition": partition, "block": number, **shown}


def _lengths(reader: PartitionReader) -> Counter[int]:
    """Count the documents that begin in the newest blocks by the power of two of their tokens; the last may go on."""
    documents: dict[int, int] = {}
    begun: set[int] = set()
    for number in range(max(reader.first_block, reader.blocks - BLOCKS), reader.blocks):
        for piece in reader.documents(number):
            if piece.position != PADDING:
                tokens = documents.pop(piece.offset, 0) + piece.stop - piece.start
                documents[piece.offset] = tokens  # as the last one
                begun |= {piece.offset} if piece.position == 0 else set()
    whole = [tokens for offset, tokens in [*documents.items()][:-1] if offset in begun]
    return Counter(1 << (tokens.bit_length() - 1) for tokens in whole)


def _trainers(address: str) -> list[dict[str, Any]]:
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    connection = http.client.HTTPConnection(address, timeout=2.0)  # a page is waiting
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(1 << 20).decode()
        for metric in text_string_to_metric_families(text):
            for sample in metric.samples:
                if (figure := sample.name.removeprefix(PREFIX)) in FIGURES and math.isfinite(sample.value):
                    row = {"at": address, "labels": sample.labels}
                    rows.setdefault(tuple(sorted(sample.labels.items())), row)[figure] = sample.value
    except (OSError, ValueError, http.client.HTTPException):
        rows.clear()
    finally:
        connection.close()
    # a page has no room for more of one address
    return [*rows.values()][:64] or [{"at": address, "labels": {}, "error": "says nothing of a trainer"}]
