"""The order of a domain is that of a list, however it is cut or taken up; and what a sequencer leaves on its disk."""

import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.duplicates.plain_duplicates import PlainWindow
from tokenmill.app.milling.duplicates.signatures import SLICES, Exact
from tokenmill.app.milling.duplicates.window import Window
from tokenmill.app.sequencer.domain_messages import (
    JudgedRange,
    Remembered,
    SignedRange,
    SliceStart,
    Source,
    VerdictChain,
    VerdictEnd,
)
from tokenmill.app.sequencer.rebuilding import BEGINNING, NOTE, DomainOrder, WindowFolder, WindowNote, base_of
from tokenmill.app.settings import Domain
from tokenmill.errors import DifferenceError

EXACT = Exact(window=5 * SLICES)
SOURCES = ((0, 0), (0, 1), (1, 0))
SEEDS = st.integers(0, 2**32 - 1)


def signed_log(seed: int) -> list[SignedRange]:
    """Return ranges of three partitions as mills send them: some again, some cut otherwise, some behind a hole."""
    rng, log = random.Random(seed), list[SignedRange]()
    contents = {source: [rng.randrange(1, 40) for _ in range(60)] for source in SOURCES}
    nexts = dict.fromkeys(SOURCES, 0)
    while any(at < len(contents[source]) for source, at in nexts.items()):
        source = rng.choice(SOURCES)
        begin = max(0, nexts[source] + rng.choice([0, 0, 0, 0, -3, 2]))
        end = min(len(contents[source]), begin + rng.randrange(1, rng.choice([4, 9, 30])))
        if begin < end:
            log.append(signed(source, begin, contents[source][begin:end]))
            nexts[source] = max(nexts[source], end) if begin <= nexts[source] else nexts[source]
    return log


def signed(source: Source, begin: int, contents: list[int]) -> SignedRange:
    offsets = np.arange(begin, begin + len(contents))
    hashes = np.array(contents, np.uint64)[:, None]
    return SignedRange(source, begin, begin + len(contents), Remembered(), offsets, hashes)


def plainly(log: list[SignedRange]) -> dict[tuple[Source, int], tuple[Source, int] | None]:
    window, nexts, found = PlainWindow(EXACT), dict.fromkeys(SOURCES, 0), {}
    for one in log:
        if one.begin > nexts[one.source]:
            continue
        for offset, (content,) in zip(one.offsets.tolist(), one.hashes.tolist(), strict=True):
            if offset >= nexts[one.source]:
                kind, place = window.judge([content], (one.source[0] << 32 | one.source[1], offset))
                found[one.source, offset] = ((place[0] >> 32, place[0] & 0xFFFFFFFF), place[1]) if kind else None
                nexts[one.source] = offset + 1
    return found


def judged_by(order: DomainOrder, log: list[SignedRange], first: int = 0) -> Iterator[tuple[int, Source, JudgedRange]]:
    for at in range(first, len(log)):
        part = order.accept(log[at])
        if part is not None:
            yield at, part.source, order.judge(part, at)


def told(verdicts: list[tuple[int, Source, JudgedRange]]) -> dict[tuple[Source, int], tuple[Source, int]]:
    return {
        (source, offset): ((place[0] >> 32, place[0] & 0xFFFFFFFF), place[1])
        for _, source, judged in verdicts
        for offset, place in zip(judged.offsets.tolist(), judged.places.tolist(), strict=True)
    }


@given(SEEDS)
def test_verdicts_are_those_of_a_list(seed: int) -> None:
    log = signed_log(seed)
    verdicts = list(judged_by(DomainOrder(EXACT, BEGINNING), log))
    assert told(verdicts) == {place: other for place, other in plainly(log).items() if other is not None}
    for source in SOURCES:
        chain = VerdictChain()
        ranges = [judged for _, one, judged in verdicts if one == source]
        assert all(chain.offer(judged) for judged in ranges)
        assert not any(chain.offer(judged) for judged in ranges)
        assert chain.verdict_end == ranges[-1].after
        assert ranges[-1].after.next_offset == 60


@given(SEEDS, st.floats(0, 1))
def test_an_order_that_is_learned_again_goes_on_the_same(seed: int, share: float) -> None:
    log = signed_log(seed)
    whole = DomainOrder(EXACT, BEGINNING)
    verdicts = list(judged_by(whole, log))
    slices = {one.number: one for one in [BEGINNING, *whole.started]}
    out = int(share * len(verdicts))
    last = verdicts[out - 1][0] if out else -1
    newest = max((one for one in slices.values() if one.signature <= last + 1), key=lambda one: one.number)
    base = base_of(slices.values(), newest, EXACT)
    again, known = DomainOrder(EXACT, base, newest.signature), {at: judged for at, _, judged in verdicts}
    for at in range(base.signature, len(log)):
        part = again.accept(log[at])
        if part is None:
            assert at not in known
        elif at <= last:
            again.take(part, at, known[at])
        else:
            assert again.judge(part, at).pack(bytes(16), 0) == known[at].pack(bytes(16), 0)
    assert again.verdict_ends == whole.verdict_ends
    assert again.window.kept == whole.window.kept
    later = [one for one in again.started if one.number > newest.number]
    assert later == [one for one in whole.started if one.number > newest.number]


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_an_order_goes_on_from_its_disk_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, beyond: float
) -> None:
    """As it was when that was noted, whatever was judged, and not noted, until it was killed."""
    log, directory = signed_log(seed), tmp_path_factory.mktemp("window")
    known = {at: judged for at, _, judged in judged_by(DomainOrder(EXACT, BEGINNING), log)}
    noted = int(share * len(log))
    killed = DomainOrder(EXACT, BEGINNING, directory=directory)
    list(judged_by(killed, log[:noted]))
    killed.window.sync()
    note = SliceStart(0, noted, killed.window.kept, dict(killed.verdict_ends))
    list(judged_by(killed, log[: noted + int(beyond * (len(log) - noted))], noted))
    again = DomainOrder(EXACT, note, None, directory)
    for at in range(noted, len(log)):
        part = again.accept(log[at])
        assert (part is None) == (at not in known)
        if part is not None:
            again.take(part, at, known[at])


def test_what_is_out_and_was_judged_otherwise_is_refused() -> None:
    """Where the window is whole; and everywhere, where it was cut otherwise or is of another history."""
    log = [signed((0, 0), 0, [1, 2, 1]), signed((0, 0), 3, [4, 5])]
    (_, _, first), (_, _, second) = judged_by(DomainOrder(EXACT, BEGINNING), log)
    changed = JudgedRange.unpack(second.pack(bytes(16), 0), bytes(16), 0, 2)
    order = DomainOrder(EXACT, BEGINNING)
    order.take(log[0], 0, first)
    with pytest.raises(DifferenceError):
        DomainOrder(EXACT, BEGINNING).take(log[0], 0, second)
    with pytest.raises(DifferenceError):
        order.take(signed((0, 0), 3, [4, 4]), 1, changed)
    trusting = DomainOrder(EXACT, SliceStart(), whole=1 << 40)
    trusting.take(log[0], 0, first)
    trusting.take(signed((0, 0), 3, [4, 4]), 1, changed)  # the window is not whole: it cannot be known
    assert trusting.window.kept == 4


def test_two_histories_of_verdicts_are_refused() -> None:
    logs = ([signed((0, 0), 0, contents), signed((0, 0), 3, [4, 5])] for contents in ([1, 2, 2], [1, 1, 2]))
    one, other = (list(judged_by(DomainOrder(EXACT, BEGINNING), log)) for log in logs)
    chain = VerdictChain()
    assert chain.offer(one[0][2])
    assert not chain.offer(replace(one[1][2], begin=9, end=12))
    for stray in (other[0][2], other[1][2]):
        with pytest.raises(DifferenceError):
            chain.offer(stray)


DOMAIN = Domain("web", ("raw-text",), "", {"name": "exact", "window": 400, "version": 1})
KNOWN = SliceStart(0, 7, 200, {(0, 1): VerdictEnd(9, bytes(range(16)))})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def known_in(window: Window, documents: int) -> int:
    """Return how many of so many documents a window knows; it has all of them then."""
    hashes = np.arange(1, 1 + documents, dtype=np.uint64)[:, None]
    return int((window.judge(hashes, np.zeros((documents, 2), np.uint64)).kinds > 0).sum())


def filled(folder: WindowFolder) -> Window:
    window = Window(Exact(window=400), folder.path, goes_on=False)
    assert known_in(window, 200) == 0
    return window


def test_a_note_is_read_by_the_next_one() -> None:
    folder = WindowFolder(DOMAIN)
    window = filled(folder)
    assert folder.is_due(window)
    folder.write(window, WindowNote(KNOWN, [1, 2**64 - 1]))
    assert not folder.is_due(window)
    folder.close()
    again = WindowFolder(DOMAIN)
    assert again.read() == WindowNote(KNOWN, [1, 2**64 - 1])
    assert known_in(Window(Exact(window=400), again.path, KNOWN.kept), 201) == 200


def test_one_process_has_the_folder() -> None:
    first, second = WindowFolder(DOMAIN), WindowFolder(DOMAIN)
    assert first.path is not None
    assert second.path is None
    window = filled(second)
    assert not second.is_due(window)
    second.write(window, WindowNote(KNOWN, []))
    second.clear()
    assert first.read() is None
    first.close()
    assert WindowFolder(DOMAIN).path is not None


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b'{"known": {"domain": "00"}, "digests": []}', b"\xff"])
def test_what_is_no_note_is_none(data: bytes) -> None:
    """As it is after a disk was damaged, or of another domain."""
    folder = WindowFolder(DOMAIN)
    assert folder.path is not None
    (folder.path / NOTE).write_bytes(data)
    assert folder.read() is None


def test_what_another_one_put_there_is_not_used(temporary: Path) -> None:
    """A link in its place, or a file: temporary folders are open to all users."""
    path = WindowFolder(DOMAIN).path
    assert path is not None
    path.rename(temporary / "elsewhere")
    path.symlink_to(temporary / "elsewhere")
    assert WindowFolder(DOMAIN).path is None
    path.unlink()
    path.touch()
    assert WindowFolder(DOMAIN).path is None
    path.unlink()
    assert WindowFolder(DOMAIN).path == path
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_leaves_the_note_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = WindowFolder(DOMAIN)
    window = filled(folder)
    folder.write(window, WindowNote(KNOWN, [1]))
    monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(28, os.strerror(28))))
    folder.write(window, WindowNote(SliceStart(0, 8, 201), [2]))
    assert folder.read() == WindowNote(KNOWN, [1])
    assert "No space left" in capsys.readouterr().out
