"""A decoder of the user's own: ``decode = "module:function"``."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.app.milling.decoding.opened import answer, opened
from tests.mills import RAW, RECIPE, assert_follow, make_source, text
from tests.strategies import nasty_bytes
from tokenmill.app.milling.columns import OutcomeColumns, RecordColumns
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.recipe_stages import complete, reopen_stages
from tokenmill.documents import Document, Record
from tokenmill.errors import FingerprintError, RecordError, SettingsError

HERE = __name__


def latin_1(value: bytes) -> Document | str | None:
    """Return the text in another encoding, with an id and a field; or a reason, declared or not."""
    if value in (b"short", b"undeclared", b"none"):
        return {b"short": "short", b"undeclared": "something"}.get(value)
    return Document(value.decode("latin-1"), len(value), {"label": "l1", "secret": "dropped"})


latin_1.version = "2"  # type: ignore[attr-defined]
latin_1.reasons = ("short",)  # type: ignore[attr-defined]


def failing(value: bytes) -> Document:
    raise ValueError(f"cannot read {value!r}")


failing.version = "1"  # type: ignore[attr-defined]


def unversioned(value: bytes) -> Document:
    """Return the text; its author forgot the version."""
    return Document(value.decode())


def test_it_makes_the_document_of_the_raw_bytes() -> None:
    decoder = opened(f"{HERE}:latin_1", metadata_fields=("label",))
    assert decoder(b"caf\xe9") == Document("café", 4, {"label": "l1"})


@pytest.mark.parametrize(("value", "reason"), [(b"short", "short"), (b"undeclared", "rejected"), (b"none", "rejected")])
def test_only_declared_reasons_come_out(value: bytes, reason: str) -> None:
    assert answer(opened(f"{HERE}:latin_1"), value) == reason


@given(nasty_bytes)
def test_whatever_it_raises_is_a_dead_letter(value: bytes) -> None:
    with pytest.raises(RecordError, match="ValueError: cannot read") as caught:
        opened(f"{HERE}:failing")(value)
    assert caught.value.reason == "function_failed"
    assert caught.value.detail.isascii()
    assert len(caught.value.detail) <= 500


def test_a_function_without_a_version_is_refused_at_start() -> None:
    """The message names the setting and what to do; whatever else is wrong is told as it is of a step."""
    with pytest.raises(SettingsError, match=r'^decode = .*unversioned\.version = "1"'):
        opened(f"{HERE}:unversioned")


def test_path_and_version_are_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version is another stream, and one that was made with the old version is refused."""
    draft = replace(RECIPE, decode=f"{HERE}:latin_1")
    recipe, _ = complete(draft, RAW, None)
    assert recipe.steps[0] == {"name": "decode", "path": f"{HERE}:latin_1", "version": "2"}
    monkeypatch.setattr(latin_1, "version", "3")
    assert complete(draft, RAW, None)[0].fingerprint != recipe.fingerprint
    with pytest.raises(FingerprintError, match=r"decode: the stream has .*version 2.*version 3"):
        reopen_stages(recipe, RAW)


def test_mill_and_reference_agree() -> None:
    source = make_source(replace(RECIPE, decode=f"{HERE}:latin_1"))
    records = [Record(n, 0, None, value) for n, value in enumerate([b"caf\xe9", b"short", b"none", b"abcdefgh"])]
    milled = source.mill().feed(records)
    dead = {outcome.record.offset: outcome.reason for outcome in milled.dead_letters}
    assert dead == {1: "short", 2: "rejected"}
    assert_follow(milled.messages["train"], source.blocks(source.recipes[0], records), source.recipes[0])
    assert source.stages.outcome(records[1]).kind is Kind.DEAD_LETTERED


def test_each_record_is_noted_before_the_function_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So one that hangs or kills is named, as with a step of the user's own."""
    seen: list[Any] = []

    def spying(value: bytes) -> Document:
        seen.append(value)
        return Document("a")

    spying.version = "1"  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "spying", spying)
    stages = make_source(replace(RECIPE, decode=f"{HERE}:spying")).stages
    records = [text(3, "a"), Record(4, 0, None, None), text(7, "b"), text(9, "c")]

    columns = OutcomeColumns.sort(
        stages, RecordColumns.of(records), {9}, lambda first, last: seen.append((first, last))
    )

    assert seen == [(3, 3), b"a", (7, 7), b"b"]
    assert columns.kept["train"].indices.tolist() == [0, 2]
