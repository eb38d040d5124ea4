"""Filters by patterns, lists of words, addresses, evaluation sets and long lines; and steps that change texts."""

import json
import re
import time
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final
from unicodedata import normalize

import ftfy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import changed, opened, reason
from tokenmill.app.milling.steps.basic import with_sorted_marks
from tokenmill.app.milling.steps.c4_paragraph import C4Paragraph
from tokenmill.app.milling.steps.decontaminate import Decontaminate, run_hashes
from tokenmill.app.milling.steps.fix_unicode import FIX_FAILED, FixUnicode
from tokenmill.app.milling.steps.fold_capitals import folded
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.app.milling.steps.replace_pii import ReplacePii, _is_meant
from tokenmill.documents import Document
from tokenmill.errors import RecordError, SettingsError

BAD, REMOVED = {"words": ["bad", "Worse than all"]}, "document_removed_with_badwords"
HALF_BAD = {"words": ["bad", "very very bad"], "max_share": 0.5}


@pytest.mark.parametrize(
    ("name", "values", "text", "wanted"),
    [
        ("regex", {"regex_exp": "b+"}, "abba", "matched"),
        ("regex", {"regex_exp": "b+"}, "aa", ""),
        ("regex", {"regex_exp": "b+", "keep_matched": True}, "aa", "not_matched"),
        ("regex", {"regex_exp": "(?i)É"}, "é", "matched"),
        ("regex", {"regex_exp": r"\p{Han}{2}"}, "漢字", "matched"),
        ("regex", {"regex_exp": "^$"}, "", "matched"),
        ("regex", {"regex_exp": "\x00"}, "a\x00", "matched"),
        ("length", {"min_chars": 3}, "ab", "min_chars"),
        ("length", {"min_chars": 3}, "abc", ""),
        ("length", {"max_chars": 3}, "abcd", "max_chars"),
        ("length", {"max_chars": 3}, "äöü", ""),
        ("length", {"min_words": 2}, " one ", "min_words"),
        ("length", {"max_words": 2}, "one two\u2003three", "max_words"),
        ("length", {"max_words": 0}, " ", ""),
        ("length", {"min_lines": 2}, "one\n \n\n", "min_lines"),
        ("length", {"max_lines": 1}, "one\n\ntwo", "max_lines"),
        ("length", {"min_words": 2, "min_chars": 9}, "one", "min_chars"),
        ("length", {}, "", ""),
        ("words", BAD, "a Bad word", REMOVED),
        ("words", BAD, "badly, abad", ""),
        ("words", BAD, "worse than that", ""),
        ("words", BAD, "WORSE  than, all", REMOVED),
        ("words", BAD, "worse than worse than all", REMOVED),
        ("words", BAD, "(bad)", REMOVED),
        ("words", BAD, "", ""),
        ("words", HALF_BAD, "bad good", ""),
        ("words", HALF_BAD, "very very bad bad good good good", REMOVED),
        ("c4_paragraph", {}, "\n".join(["x" * 200] * 3), ""),
        ("c4_paragraph", {}, "\r".join(["x" * 200] * 3), "too_few_paragraphs"),
        ("url", {"extra_domains": ["example.com"]}, "https://www.example.com/page", "domain"),
        ("url", {"extra_domains": ["example.com"]}, "EXAMPLE.com.", "domain"),
        ("url", {"extra_domains": ["example.com"]}, "http://user:word@example.com:8080/", "domain"),
        ("url", {"extra_domains": ["example.com"]}, "https://notexample.com/example.com", ""),
        ("url", {"extra_domains": ["example.com"]}, "http://[::1", ""),
        ("url", {"extra_urls": ["http://a.b/c"]}, "http://a.b/c", "url"),
        ("url", {"banned_words": ["casino"]}, "http://a.b/Casino-royale", "hard_blacklisted"),
        ("url", {"banned_words": ["casino"]}, "http://a.b/casinos", ""),
        ("url", {"soft_banned_words": ["x", "y"]}, "http://a.b/x/x", ""),
        ("url", {"soft_banned_words": ["x", "y"]}, "http://a.b/x/y", "soft_blacklisted"),
        ("url", {"soft_banned_words": ["x"], "soft_word_threshold": 1}, "http://a.b/x", "soft_blacklisted"),
        ("url", {"banned_subwords": ["bad"]}, "http://a.b/b-a-d", "blacklisted_subword"),
        ("url", {"banned_subwords": ["bad"]}, "http://a.c/ba", ""),
        ("url", {}, " ", ""),
        ("url", {"missing": "filter"}, " ", "no_url"),
    ],
)
def test_a_text_or_its_address_has_a_reason_or_stays(name: str, values: dict[str, Any], text: str, wanted: str) -> None:
    assert reason(opened(name, metadata_fields=("url",), **values), text, url=text) == wanted


NO_PATTERN = "regex_exp = .* is no pattern of RE2: "


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        *(("regex", {"regex_exp": pattern}, NO_PATTERN) for pattern in ("(a", r"(a)\1", "(?=a)", "a{1001}")),
        ("length", {"min_words": 5, "max_words": 2}, ".*between 5 and 2 words: correct min_words or max_words"),
        ("length", {"min_chars": -1}, ".*between -1"),
        ("sample", {"rate": 5}, r".*rate = 5\.0: a share is from 0 to 1"),
        ("url", {"extra_domains": ["example.com"]}, 'the field "url" is not read: add it to metadata_fields'),
        ("language", {"languages": ["English"]}, 'languages: the model knows no "English"; it knows af, als, .* zh$'),
        ("language", {"languages": ["en", "xx"]}, 'languages: the model knows no "xx"'),
        ("language", {"language_threshold": 65}, "language_threshold = "),
        ("language", {"beginning": 0}, "beginning = "),
    ],
)
def test_wrong_parameters_are_named(name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^step 1 \({name}\): {said}"):
        opened(name, **values)


def test_a_list_may_be_a_file(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_bytes(b"bad\r\n# not this\r\n\r\nworse\r\n")
    other.write_text("worse\nbad\nbad\n")
    step = opened("words", words=str(one))
    assert reason(step, "worse") != ""
    assert reason(step, "this") == ""
    assert step.describe() == opened("words", words=str(other)).describe()
    assert step.describe() != opened("words", words=["bad", "worse"]).describe()


def test_lists_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    for listed, content, said in (
        ("--", "# nothing\n", "it has no word"),
        ("a b c d e f g h i", "a b c d e f g h i\n", "'a b c d e f g h i' has more than 8 words"),
    ):
        with pytest.raises(SettingsError, match=rf"^step 1 \(words\): words: {said}"):
            opened("words", words=[listed])
        path.write_text(content)
        with pytest.raises(
            SettingsError, match=rf"^step 1 \(words\): words: {re.escape(str(path))} cannot be used: {said}"
        ):
            opened("words", words=str(path))


def test_lists_may_be_files(tmp_path: Path) -> None:
    """As long as they like: an address is looked up, not compared with each entry."""
    (tmp_path / "domains.txt").write_text("".join(f"n{n}.example\n" for n in range(20_000)))
    step = opened("url", metadata_fields=("url",), extra_domains=str(tmp_path / "domains.txt"))
    assert reason(step, "text", url="https://a.n19999.example/") == "domain"


def test_a_host_of_many_labels_is_looked_up_at_its_end() -> None:
    """With as many of them as a listed domain has; each end of a host of 100,000 labels took minutes."""
    step = opened("url", metadata_fields=("url",), extra_domains=["bad.example"])
    began = time.process_time()
    assert reason(step, "text", url="http://" + "a." * 100_000 + "good.example/") == ""
    assert reason(step, "text", url="http://" + "a." * 100_000 + "bad.example/") == "domain"
    assert time.process_time() - began < 10


QUESTION = "How many loaves does the miller bake when each of his seven sons eats two of them a day"


def test_a_run_of_thirteen_words_is_enough(tmp_path: Path) -> None:
    (tmp_path / "evaluation.txt").write_text(f"{QUESTION}\nshort\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.txt"))
    words = QUESTION.upper().split()
    assert reason(step, f"before, {', '.join(words[3:16])}! After.") == "contaminated"
    assert reason(step, " ".join(words[:12])) == ""
    assert reason(step, " ".join([*words[:12], "and", *words[12:]])) == ""
    assert reason(step, "short") == ""


def test_texts_may_be_json_objects_and_some_matches_allowed(tmp_path: Path) -> None:
    value = {"question": "one two three", "choices": ["four five six", {"text": "seven eight nine"}], "answer": 2}
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(value) + "\n{no json at all\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.jsonl"), n_grams=3, max_matches=1)
    assert reason(step, "four five six") == ""
    assert reason(step, "four five six. Seven eight nine") == "contaminated"
    assert reason(step, "two three four five") == ""
    assert reason(step, "no json at all, no json at") == "contaminated"


def test_only_hashes_travel(tmp_path: Path) -> None:
    made = Decontaminate.list_form(b"a b c\na b c d\n", {"n_grams": 3})
    assert len(made) == 16
    assert list(np.frombuffer(made, "<u8")) == sorted(np.frombuffer(made, "<u8"))
    assert run_hashes(["the", "grain"], 2).tolist() == [15803083548537242265]  # as it lies on control topics
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(SettingsError, match=r"texts: .*short.txt cannot be used: no text has 13 words"):
        opened("decontaminate", texts=str(tmp_path / "short.txt"))
    with pytest.raises(SettingsError, match="n_grams = 0"):
        opened("decontaminate", texts=str(tmp_path / "short.txt"), n_grams=0)


@given(st.lists(st.sampled_from(["a", "b", "é"]), max_size=12), st.integers(1, 4))
def test_equal_runs_have_equal_hashes_and_others_have_others(words: list[str], size: int) -> None:
    runs = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    hashes = run_hashes(words, size).tolist()
    assert len(hashes) == len(runs)
    assert len(set(hashes)) == len(set(runs)) == len(set(zip(hashes, runs, strict=True)))


@given(st.lists(st.integers(190, 210), max_size=8), st.sampled_from(["\n", "\n\n", "\r\n"]))
def test_three_lines_of_two_hundred_characters_are_enough(lengths: list[int], end: str) -> None:
    lines = ["é" * length + end[:-1] for length in lengths]
    document = Document("\n".join(lines), None, {})
    third = sorted((len(line) for line in document.text.split("\n")), reverse=True)[2:3]
    expected = document if third and third[0] >= 200 else Rejected("too_few_paragraphs")
    assert C4Paragraph()(document) == expected


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
MARKED = {"email_replacement": "<mail>", "ip_replacement": "<ip>"}


@given(
    st.text("ab.-@!é[]1: \n_", max_size=40)
    | st.lists(st.sampled_from(["a@b.c", ".", "-", "@", "é", "x", "[1.2.3.4]"])).map("".join)
)
def test_what_datatroves_pattern_finds_is_replaced(text: str) -> None:
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
    text = f"at {written}, say"
    assert changed(opened("replace_pii"), text) == (text.replace(written, ADDRESS) if public else text)


@pytest.mark.parametrize(
    ("name", "values", "text", "wanted"),
    [
        # a text is folded where most letters are capitals; letters that have no case count as others
        ("fold_capitals", {}, "THE Mill 1234567890", "the mill 1234567890"),
        ("fold_capitals", {}, "The MILL", "the mill"),
        ("fold_capitals", {}, "The MiLls", "The MiLls"),
        ("fold_capitals", {}, "\u4f7f\u7528 GPU \u548c", "\u4f7f\u7528 GPU \u548c"),
        ("fold_capitals", {}, "\u00c0\u00c9\u0130 \u01c5", "\u00e0\u00e9i \u01c6"),
        ("fold_capitals", {}, "12.5 %", "12.5 %"),
        ("fold_capitals", {}, "", ""),
        ("fix_unicode", {}, "âœ” No problems", "✔ No problems"),
        ("fix_unicode", {}, "a &amp; b", "a & b"),
        ("fix_unicode", {}, "<i>a &amp; b", "<i>a &amp; b"),
        ("fix_unicode", {}, "\x1b[31mred", "red"),
        ("fix_unicode", {}, "a\x00b", "ab"),
        ("fix_unicode", {}, "“curly” ﬁ", "“curly” ﬁ"),
        ("fix_unicode", {}, "plain\n", "plain\n"),
        ("fix_unicode", {"uncurl_quotes": True, "fix_latin_ligatures": True}, "“ﬁ”", '"fi"'),
        ("fix_unicode", {"normalization": "NFC"}, "e\u0301", "\u00e9"),
        ("replace_pii", MARKED, "a@b.org c@d.org 8.8.8.8", "<mail> <mail> <ip>"),
    ],
)
def test_a_text_is_changed_again_and_again(name: str, values: dict[str, Any], text: str, wanted: str) -> None:
    step = opened(name, **values)
    assert [changed(step, text) for _ in range(2)] == [wanted] * 2


@given(st.text())
def test_folding_changes_case_alone_and_nothing_twice(text: str) -> None:
    once = folded(text)
    assert changed(opened("fold_capitals"), text) == once
    assert len(once) == len(text)
    assert folded(once) == once
    assert [a for a in text if not a.isupper()] == [b for a, b in zip(text, once, strict=True) if not a.isupper()] or (
        any(a.istitle() for a in text)
    )


STEP = FixUnicode()


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("&;#<\r\x1b[â€œ\x00\ufeff"), max_size=30))
def test_what_is_not_looked_at_would_not_change(text: str) -> None:
    """ASCII without ampersands and control characters."""
    assert changed(STEP, text) == ftfy.fix_text(text, STEP._config)


def test_a_text_over_which_ftfy_raises_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("its own words")

    monkeypatch.setattr(ftfy, "fix_text", broken)
    with pytest.raises(RecordError, match=f"^{FIX_FAILED}: .*its own words"):
        STEP(Document("é"))


def test_normalizing_marks_takes_no_square_of_time() -> None:
    """What ftfy looks at together is long enough for that."""
    text = "\u0f73" * 100_000
    began = time.process_time()
    fixed = FixUnicode(normalization="NFD")(Document(text))
    assert fixed == Document(normalize("NFD", with_sorted_marks("NFD", text)))
    assert time.process_time() - began < 10
