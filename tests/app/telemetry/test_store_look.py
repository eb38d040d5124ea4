"""What is shown of a store and of trainers, and to whom."""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Gauge
from pydantic import SecretStr, ValidationError

from tests.milled_store import STREAM, store_of
from tests.scraping import ask, free_port
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import store_look
from tokenmill.app.telemetry.server import Probes, may_see_texts, serving
from tokenmill.app.telemetry.store_look import SHOWN_TOKENS, StoreLook
from tokenmill.consumers.prometheus import serve_metrics
from tokenmill.errors import DamagedError
from tokenmill.store import streams_in
from tokenmill.store.layout import partition_directory


def looked(look: StoreLook, *, texts: bool = True) -> Mapping[str, Any]:
    look.document(texts=texts)
    look._thread.join()
    return look.document(texts=texts)


def stream_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = looked(StoreLook(Settings(store=path)))["streams"][STREAM]
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_of(tmp_path / "store", ["<script>alert(1)</script>\u202e", *["a" * 40] * 9, "b" * 100])
    return tmp_path / "store"


def test_the_newest_block_is_shown_by_its_documents_which_are_counted_by_length(store: Path) -> None:
    """Together they are the block's text; a document that began in an earlier block says so."""
    newest = stream_of(store)["newest"]
    assert (newest["partition"], newest["tokens"], newest["shown"]) == (0, 64, 64)
    assert [piece["position"] > 0 for piece in newest["pieces"]] == [True] + [False] * (len(newest["pieces"]) - 1)
    assert set("".join(piece["text"] for piece in newest["pieces"])) <= {"a", "b", "\n", "\0", "\ufffd"}
    assert stream_of(store)["lengths"] == [
        (16, 1),
        (32, 9),
    ]  # of documents; the last one, which may go on, is not counted


def test_a_long_block_is_cut(tmp_path: Path) -> None:
    store_of(tmp_path, ["c" * 100] * 100, block_tokens=4096)
    newest = stream_of(tmp_path)["newest"]
    assert (newest["tokens"], newest["shown"]) == (4096, SHOWN_TOKENS)
    assert SHOWN_TOKENS - 20 <= sum(len(piece["text"]) for piece in newest["pieces"]) <= SHOWN_TOKENS


def test_damage_and_a_store_that_is_not_there_are_told(store: Path, tmp_path: Path) -> None:
    assert looked(StoreLook(Settings(store=tmp_path / "none")))["streams"] == {}
    table = next(partition_directory(store, STREAM, 0).glob("*.docs"))
    table.write_bytes(bytes(table.stat().st_size))
    assert stream_of(store) == {"error": DamagedError.brief}


def test_nobody_waits_for_a_disk_and_one_look_serves_all(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, looks = threading.Event(), list[bool]()

    def hangs(path: Path) -> list[str]:
        looks.append(gate.wait(30))
        return streams_in(path)

    monkeypatch.setattr(store_look, "streams_in", hangs)
    clock = iter(range(0, 10**6, 60))
    look = StoreLook(Settings(store=store), lambda: float(next(clock)))
    before = time.monotonic()
    assert [look.document(texts=True) for _ in range(100)] == [{"streams": {}, "trainers": []}] * 100
    assert time.monotonic() - before < 5
    gate.set()
    look._thread.join()
    assert looks == [True]
    assert look._known["streams"].keys() == {STREAM}


def test_texts_are_read_only_where_somebody_asked_for_them(store: Path) -> None:
    """The tokenizer is in memory from then on."""
    look = StoreLook(Settings(store=store))
    assert looked(look, texts=False)["streams"][STREAM].keys() == {"lengths"}
    assert not look._engines
    assert looked(look)["streams"][STREAM].keys() == {"lengths", "newest"}


def test_trainers_are_asked_where_the_settings_name_them(tmp_path: Path) -> None:
    registry, labels = CollectorRegistry(), ["stream", "rank"]
    for name, value in {"step": 12, "behind_eras": 2, "mixture_share": 1, "tokens_total": float("nan")}.items():
        Gauge(f"tokenmill_trainer_{name}", name, labels, registry=registry).labels(STREAM, "<b>").set(value)
    server = serve_metrics(free_port(), registry=registry)
    at, gone = f"127.0.0.1:{server.port}", f"127.0.0.1:{free_port()}"
    rows = looked(StoreLook(Settings(store=tmp_path, trainers=f"{at},{gone}")))["trainers"]  # type: ignore[arg-type]
    server.stop()
    assert rows == [
        {"at": at, "labels": {"stream": STREAM, "rank": "<b>"}, "step": 12.0, "behind_eras": 2.0},
        {"at": gone, "labels": {}, "error": "says nothing of a trainer"},
    ]
    with pytest.raises(ValidationError, match="write it like trainer:9465"):
        Settings(trainers="http://trainer:9465/")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "asked", "token", "may"),
    [
        ("127.0.0.1", "127.0.0.1:9464", None, True),
        ("localhost", "localhost", None, True),
        ("::1", "[::1]:9464", None, True),
        ("127.0.0.1", "evil.example", None, False),
        ("127.0.0.1", "[::1", None, False),
        ("0.0.0.0", "127.0.0.1:9464", None, False),  # noqa: S104 - as people do
        ("0.0.0.0", "mill-3", "token", True),  # noqa: S104 - the same
    ],
)
def test_texts_are_for_this_machine_or_for_the_token(host: str, asked: str, token: str | None, *, may: bool) -> None:
    """Also where another server's page has its own name stand for this address."""
    settings = Settings(metrics_host=host, http_token=SecretStr(token) if token else None)
    assert may_see_texts(settings, make_mocked_request("GET", "/api/store", headers={"Host": asked})) == may


def test_it_is_served_to_those_alone(store: Path) -> None:
    for host, code in {"127.0.0.1": 200, "0.0.0.0": 403}.items():  # noqa: S104 - as people do
        port = free_port()
        with serving(Settings(store=store, metrics_host=host, metrics_port=port), [], Probes(), dict):
            answer = ask(port, "/api/store?texts")
            assert answer[0] == code
            assert code == 403 or json.loads(answer[1]).keys() == {"streams", "trainers"}
            assert code == 200 or "http_token" in answer[1]
