"""The steps that rewrite texts."""

import re
import time
from ipaddress import IPv4Address
from typing import Final
from unicodedata import normalize

import ftfy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import changed, opened
from tokenmill.app.milling.steps.basic import with_sorted_marks
from tokenmill.app.milling.steps.rewriting import FIX_FAILED, FixUnicode, ReplacePii, _is_meant, folded
from tokenmill.documents import Document
from tokenmill.errors import RecordError

STEP = FixUnicode()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("âœ” No problems", "✔ No problems"),
        ("a &amp; b", "a & b"),
        ("<i>a &amp; b", "<i>a &amp; b"),
        ("\x1b[31mred", "red"),
        ("a\x00b", "ab"),
        ("“curly” ﬁ", "“curly” ﬁ"),
        ("plain\n", "plain\n"),
    ],
)
def test_text_is_repaired(text: str, wanted: str) -> None:
    """Typography stays."""
    assert changed(STEP, text) == wanted


def test_parameters_are_ftfys() -> None:
    """Each can be asked for."""
    assert changed(opened("fix_unicode", uncurl_quotes=True, fix_latin_ligatures=True), "“ﬁ”") == '"fi"'
    assert changed(opened("fix_unicode", normalization="NFC"), "e\u0301") == "\u00e9"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("&;#<\r\x1b[â€œ\x00\ufeff"), max_size=30))
def test_what_is_not_looked_at_would_not_change(text: str) -> None:
    """ASCII without ampersands and control characters."""
    assert changed(STEP, text) == ftfy.fix_text(text, STEP._config)


def test_a_text_over_which_ftfy_raises_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dead letter."""

    def broken(*_: object) -> str:
        raise ValueError("its own words")

    monkeypatch.setattr(ftfy, "fix_text", broken)
    with pytest.raises(RecordError, match="its own words") as caught:
        STEP(Document("é"))
    assert caught.value.reason == FIX_FAILED


def test_normalizing_marks_takes_no_square_of_time() -> None:
    """What ftfy looks at together is long enough for that."""
    text = "\u0f73" * 100_000
    began = time.process_time()
    fixed = FixUnicode(normalization="NFD")(Document(text))
    assert fixed == Document(normalize("NFD", with_sorted_marks("NFD", text)))
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("text", "small"),
    [
        ("THE Mill 1234567890", "the mill 1234567890"),
        ("The MILL", "the mill"),
        ("The MiLls", "The MiLls"),
        ("\u4f7f\u7528 GPU \u548c", "\u4f7f\u7528 GPU \u548c"),
        ("\u00c0\u00c9\u0130 \u01c5", "\u00e0\u00e9i \u01c6"),
        ("12.5 %", "12.5 %"),
        ("", ""),
    ],
)
def test_a_text_is_folded_where_most_letters_are_capitals(text: str, small: str) -> None:
    """Digits and spaces are no letters; letters that have no case count as others."""
    assert folded(text) == changed(opened("fold_capitals"), text) == small


@given(st.text())
def test_folding_changes_case_alone_and_nothing_twice(text: str) -> None:
    """So a text keeps its length, and all that is not a letter with a case."""
    once = folded(text)
    assert len(once) == len(text)
    assert folded(once) == once
    assert [a for a in text if not a.isupper()] == [b for a, b in zip(text, once, strict=True) if not a.isupper()] or (
        any(a.istitle() for a in text)
    )


EMAILS: Final = re.compile(
    r"\b[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]*"
    r"[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?|\[(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}"
    r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?|[A-Za-z0-9-]*[A-Za-z0-9]:)])"
)
ADDRESSES: Final = re.compile(
    r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
)
"""datatrove's patterns, as they are."""
EMAIL, ADDRESS = "email@example.com", "22.214.171.124"


@given(
    st.text("ab.-@!é[]1: \n_", max_size=40)
    | st.lists(st.sampled_from(["a@b.c", ".", "-", "@", "é", "x", "[1.2.3.4]"])).map("".join)
)
def test_what_datatroves_pattern_finds_is_replaced(text: str) -> None:
    """No more, and no less."""
    assert changed(ReplacePii(remove_ips=False), text) == EMAILS.sub(EMAIL, text)


@given(st.text("0129. a", max_size=40) | st.lists(st.integers(0, 300).map(str) | st.just("1")).map(".".join))
def test_addresses_are_those_of_datatroves_pattern_that_are_whole_numbers(text: str) -> None:
    """Public or not, without those with a leading zero; by the rules of version 1, also those inside longer numbers."""

    def replacement(found: re.Match[str]) -> str:
        try:
            IPv4Address(found.group())
        except ValueError:
            return found.group()
        return ADDRESS

    def whole(found: re.Match[str]) -> str:
        return replacement(found) if ADDRESSES.fullmatch(found.group()) else found.group()

    step = ReplacePii(only_remove_public_ips=False)
    assert changed(step.by_rules(1), text) == ADDRESSES.sub(replacement, text)
    assert changed(step, text) == re.sub(r"[0-9]+(?:\.[0-9]+)*", whole, text)


@pytest.mark.parametrize("number", ["256.1.1.1", "1.1.1.256", "1.2.3.4.5", "8.8.8.8888", "5.8.8.8.8", "08.8.8.8"])
def test_a_longer_number_holds_no_address(number: str) -> None:
    """A version, a heading, a number that no part of an address has: text that must not be changed."""
    assert changed(opened("replace_pii"), f"see {number}, and 8.8.8.8.") == f"see {number}, and {ADDRESS}."


@pytest.mark.parametrize(
    ("written", "public"),
    [
        ("8.8.8.8", True), ("10.0.0.1", False), ("192.168.0.1", False), ("127.0.0.1", False), ("172.15.0.1", True),
        ("172.16.0.1", False), ("169.254.9.9", False), ("100.64.0.1", False), ("255.255.255.255", False),
        ("192.0.0.9", True), ("192.0.0.8", False), ("1.02.3.4", False),
    ],
)  # fmt: skip
def test_addresses_of_private_networks_stay(written: str, public: object) -> None:
    """What is public is said here, not by the release of Python."""
    assert _is_meant(written, public=True) is public
    assert changed(opened("replace_pii"), f"at {written}, say") == (
        f"at {ADDRESS}, say" if public else f"at {written}, say"
    )


def test_the_answer_depends_on_the_document_alone() -> None:
    """Each address gets the same replacement, however many come."""
    step = opened("replace_pii", email_replacement="<mail>", ip_replacement="<ip>")
    assert [changed(step, "a@b.org c@d.org 8.8.8.8") for _ in range(2)] == ["<mail> <mail> <ip>"] * 2
