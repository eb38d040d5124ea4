"""Addresses of people and machines."""

import re
from ipaddress import IPv4Address
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import changed, opened
from tokenmill.app.milling.steps.replace_pii import ReplacePii, _is_meant

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
    step = opened("replace_pii", email_replacement="<mail>", ip_replacement="<ip>")
    assert [changed(step, "a@b.org c@d.org 8.8.8.8") for _ in range(2)] == ["<mail> <mail> <ip>"] * 2
