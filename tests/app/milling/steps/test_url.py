"""Addresses."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.milling.steps.curated import opened, reason
from tokenmill.errors import SettingsError


@pytest.mark.parametrize(
    ("values", "url", "wanted"),
    [
        ({"extra_domains": ["example.com"]}, "https://www.example.com/page", "domain"),
        ({"extra_domains": ["example.com"]}, "EXAMPLE.com.", "domain"),
        ({"extra_domains": ["example.com"]}, "http://user:word@example.com:8080/", "domain"),
        ({"extra_domains": ["example.com"]}, "https://notexample.com/example.com", ""),
        ({"extra_domains": ["example.com"]}, "http://[::1", ""),
        ({"extra_urls": ["http://a.b/c"]}, "http://a.b/c", "url"),
        ({"banned_words": ["casino"]}, "http://a.b/Casino-royale", "hard_blacklisted"),
        ({"banned_words": ["casino"]}, "http://a.b/casinos", ""),
        ({"soft_banned_words": ["x", "y"]}, "http://a.b/x/x", ""),
        ({"soft_banned_words": ["x", "y"]}, "http://a.b/x/y", "soft_blacklisted"),
        ({"soft_banned_words": ["x"], "soft_word_threshold": 1}, "http://a.b/x", "soft_blacklisted"),
        ({"banned_subwords": ["bad"]}, "http://a.b/b-a-d", "blacklisted_subword"),
        ({"banned_subwords": ["bad"]}, "http://a.c/ba", ""),
        ({}, " ", ""),
        ({"missing": "filter"}, " ", "no_url"),
    ],
)
def test_an_address_is_looked_up(values: dict[str, Any], url: str, wanted: str) -> None:
    assert reason(opened("url", metadata_fields=("url",), **values), "text", url=url) == wanted


def test_a_field_that_is_not_read_is_named() -> None:
    """Every document would pass otherwise."""
    with pytest.raises(SettingsError, match=r'step 1 \(url\): the field "url" is not read: add it to metadata_fields'):
        opened("url", extra_domains=["example.com"])


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
