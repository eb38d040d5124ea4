"""Secrets in addresses: hidden in every spelling, and nothing else is."""

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import InputError, RecordError, RegistryError
from tokenmill.redaction import HIDDEN, holds_secret, redacted

LETTERS = st.characters(codec="ascii", categories=["L", "N"])
SECRETS = st.text(LETTERS, min_size=6, max_size=30).map(lambda text: f"S3c{text}")
"""Nothing else has them in it."""
PUNCTUATED = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=20)
NAMES = """
password PASSWORD passwd pwd PWD sslpassword pass token access_token auth_token api_key apikey key secret
client_secret sig signature X-Amz-Signature X-Goog-Signature x-amz-security-token X-Amz-Credential AWSAccessKeyId
SharedAccessSignature jwt account_key AccountKey sas_token aws_secret_access_key private_key oauth_token sessionid
Authorization
"""
PARAMETERS = st.sampled_from(NAMES.split())


@given(
    secret=SECRETS,
    more=PUNCTUATED,
    scheme=st.sampled_from(["http", "https", "postgresql+psycopg", "s3", "kafka", "hf"]),
)
def test_a_password_before_a_host_is_hidden(secret: str, more: str, scheme: str) -> None:
    for password in (secret, quote(secret + more, safe=""), quote(quote(secret + more, safe=""), safe="")):
        for user in ("", "user", "a.b%40c"):
            shown = redacted(f"reading {scheme}://{user}:{password}@host:9092/path?x=1 failed")
            assert secret not in shown
            assert "host:9092/path" in shown
            assert shown.startswith("reading ")
            assert shown.endswith(" failed")


@given(secret=SECRETS, before=st.sampled_from(["p/a", "p@", "p?a", "p#", "p:a@", "p;x="]))
def test_a_password_of_what_addresses_are_made_of_is_hidden(secret: str, before: str) -> None:
    """Libraries take it as it is, though it ought to be escaped."""
    assert secret not in redacted(f"mysql://user:{before}{secret}@host/name")


@given(secret=SECRETS, name=PARAMETERS, begin=st.sampled_from(["?", "?page=1&", "#", "?a=b;", "?x=y&z=%20&"]))
def test_a_parameter_that_is_secret_is_hidden(secret: str, name: str, begin: str) -> None:
    spelt = "".join(f"%{ord(letter):02x}" for letter in name)
    for key in (name, spelt):
        address = f"https://host/path{begin}{key}={secret}&last=1"
        for whole in (address, quote(address, safe=""), f"hf://csv?data_files={quote(address, safe='')}&sep=,"):
            shown = redacted(whole)
            assert secret not in shown
            assert HIDDEN in shown
            assert "host" in shown
            assert "last" in shown


@given(secret=SECRETS, more=st.text(LETTERS, max_size=9))
def test_a_connection_string_in_an_address_is_hidden_in_part(secret: str, more: str) -> None:
    """Server and user are for people; so is what a driver repeats."""
    for key in ("PWD", "Password", "pwd"):
        string = f"Driver={{ODBC Driver 18}};Server=host;UID=me{more};{key}={secret};Encrypt=yes"
        shown = redacted(f"mssql+pyodbc:///?odbc_connect={quote(string, safe='')}")
        assert secret not in shown
        assert f"me{more}" in shown
        assert secret not in redacted(f"the driver says: {string}")
        tables = (f'{{"key": "{secret}", "anon": false}}', f"{{'{key}':'{secret}'}}")
        assert all(secret not in redacted(f"hf://csv?storage_options={quote(table)}") for table in tables)


@given(secret=SECRETS, begin=st.sampled_from(["{a; ", "'a ", "'a\\' ", '"a ', '"a,', "{a'"]))
def test_a_quoted_password_outside_of_an_address_is_hidden(secret: str, begin: str) -> None:
    """Braces of ODBC, quotes of libpq with what they escape, and of others; what follows is for people."""
    end = {"{": "}", "'": "'", '"': '"'}[begin[0]]
    shown = redacted(f"the driver says: host=h password={begin}{secret} z{end} dbname=d")
    assert shown == f"the driver says: host=h password={HIDDEN} dbname=d"


@given(secret=SECRETS)
def test_what_a_library_takes_apart_is_hidden_too(secret: str) -> None:
    address = f"postgresql://user:{quote(secret + '!-')}@host/name"
    shown = redacted(f'connection failed: password "{secret}!-" of user', address)
    assert shown == f'connection failed: password "{HIDDEN}" of user'


PLAIN = [
    "s3://bucket/a@b.jsonl", "hf://owner/model@0123abc", "hf://owner/name?split=train&revision=main&languages=en,de",
    "sqlite:///pages.db", "postgresql+psycopg://user@host:5432/name?sslmode=require&connect_timeout=5",
    "kafka://h1:9092,h2:9092/topic", "http://[::1]:9464/status", "https://host/a/b.jsonl?page=2#top",
    "hf://name?tokenizer=bert&max_tokens=5&author=x&keys=a", "tokens=1,234 records=5", "50 % of it, as 5%25",
    "set sasl_password, or sasl_password_file", "gs://bucket/100%/a:b@c.parquet", "/data/folder=1/key=2/a.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_names_without_a_secret_stay_as_they_are(text: str) -> None:
    """They are ids, and those of runs that began long ago."""
    assert redacted(text) == text
    assert not holds_secret(text)


@given(st.text() | st.text(st.sampled_from("ab:/@?&=#;%25{}\"' ")))
def test_what_is_hidden_once_stays_so(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@pytest.mark.parametrize(
    "piece",
    ["a", "a-", "a://", "http://a:", "a:b@", "%3a%2f%2f", "a=b&", "%25", "password=", "{'", "x://?key={", ":/", "@"],
)
def test_long_texts_are_no_harm(piece: str) -> None:
    before = time.process_time()
    for begin in ("", "x://"):
        redacted((begin + piece * 100_000)[:200_000])
    assert time.process_time() - before < 5


def test_no_error_shows_a_secret() -> None:
    address = "http://user:S3cret@host/?token=S3cret"
    for error in (InputError(f"{address}: no"), RegistryError(address, definite=True), RecordError("reason", address)):
        assert "S3cret" not in str(error)
