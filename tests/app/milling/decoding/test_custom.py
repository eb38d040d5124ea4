"""A decoder of the user's own: ``decode = "module:function"``."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.app.milling.decoding import user_decoders
from tests.app.milling.decoding.opened import answer, opened
from tests.mills import RAW, RECIPE, assert_follow, make_source, text
from tests.strategies import nasty_bytes
from tokenmill.app.milling.columns import OutcomeColumns, RecordColumns
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.recipe_stages import complete, reopen_stages
from tokenmill.documents import Document, Record
from tokenmill.errors import FingerprintError, RecordError, SettingsError

HERE = user_decoders.__name__


def test_it_makes_the_document_of_the_raw_bytes() -> None:
    """Text, id, and the fields that the stream carries."""
    decoder = opened(f"{HERE}:latin_1", metadata_fields=("label",))
    assert decoder(b"caf\xe9") == Document("café", 4, {"label": "l1"})


@pytest.mark.parametrize(("value", "reason"), [(b"short", "short"), (b"undeclared", "rejected"), (b"none", "rejected")])
def test_only_declared_reasons_come_out(value: bytes, reason: str) -> None:
    """Each is a dead letter, for the record is no document."""
    assert answer(opened(f"{HERE}:latin_1"), value) == reason


@given(nasty_bytes)
def test_whatever_it_raises_is_a_dead_letter(value: bytes) -> None:
    """With the exception's type and message, short and escaped."""
    with pytest.raises(RecordError, match="ValueError: cannot read") as caught:
        opened(f"{HERE}:failing")(value)
    assert caught.value.reason == "function_failed"
    assert caught.value.detail.isascii()
    assert len(caught.value.detail) <= 500


@pytest.mark.parametrize(
    ("value", "reason"), [(b"bytes", "function_failed"), (b"surrogate", "function_failed"), (b"long", "too_large")]
)
def test_what_is_no_document_never_gets_out_of_it(value: bytes, reason: str) -> None:
    """Wrong types, lone surrogates, and parts over their limits."""
    assert answer(opened(f"{HERE}:wrong"), value) == reason


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:function", "ModuleNotFoundError"),
        (f"{HERE}:missing", "AttributeError"),
        (f"{HERE}:HERE", "AttributeError"),
        (f"{HERE}:unversioned", 'unversioned.version = "1"'),
        (":latin_1", 'write "module:function"'),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_start(path: str, message: str) -> None:
    """The message names the setting and what to do."""
    with pytest.raises(SettingsError, match=f"^decode = .*{message}"):
        opened(path)


def test_path_and_version_are_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version is another stream, and one that was made with the old version is refused."""
    draft = replace(RECIPE, decode=f"{HERE}:latin_1")
    recipe, _ = complete(draft, RAW, None)
    assert recipe.steps[0] == {"name": "decode", "path": f"{HERE}:latin_1", "version": "2"}
    monkeypatch.setattr(user_decoders.latin_1, "version", "3")
    assert complete(draft, RAW, None)[0].fingerprint != recipe.fingerprint
    with pytest.raises(FingerprintError, match=r"decode: the stream has .*version 2.*version 3"):
        reopen_stages(recipe, RAW)


def test_mill_and_reference_agree() -> None:
    """Blocks, dead letters and totals, in one fetch and record by record."""
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
    monkeypatch.setattr(user_decoders, "spying", spying, raising=False)
    stages = make_source(replace(RECIPE, decode=f"{HERE}:spying")).stages
    records = [text(3, "a"), Record(4, 0, None, None), text(7, "b"), text(9, "c")]

    columns = OutcomeColumns.sort(
        stages, RecordColumns.of(records), {9}, lambda first, last: seen.append((first, last))
    )

    assert seen == [(3, 3), b"a", (7, 7), b"b"]
    assert columns.kept["train"].indices.tolist() == [0, 2]
