"""What hostile clients can do to the server of metrics: nothing that the next scrape would notice."""

import gzip
import http.client
import resource
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.marked import until
from tests.scraping import ask, parse
from tokenmill import page_server
from tokenmill.page_server import CONNECTIONS, Page, PageServer, metrics_of, most_connections

CLIENTS: Final = 300
"""Several times what the server lets in, in a process with 1,024 descriptors for both ends."""
LIFE_SECONDS: Final = 1.0
SECONDS: Final = 20.0
LONG: Final = b"x" * (8 << 20)


def raising(_: object) -> Page:
    raise RuntimeError("secret text of a record")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(page_server, "LIFE_SECONDS", LIFE_SECONDS)
    registry = CollectorRegistry()
    for name in ("one", "other"):
        Gauge(name, "A number.", registry=registry).set(1)
    server = PageServer(
        "127.0.0.1", 0, {"/metrics": metrics_of(registry), "/long": lambda _: Page(LONG), "/broken": raising}
    )
    server.start()
    yield server
    server.stop()


def connected(server: PageServer, sends: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
    client.sendall(sends)
    return client


def read(client: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while data := client.recv(1 << 16):
            found += data
    return found


def is_over(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "sends",
    [b"", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Half:", b"POST /metrics HTTP/1.1\r\nContent-Length: 9999\r\n\r\nx"],
    ids=["nothing", "half a header", "half a body"],
)
@pytest.mark.slow
def test_half_open_requests_keep_nobody_out_and_are_ended(server: PageServer, sends: bytes) -> None:
    """Far more than there may be: the server has one thread, lets few in, answers others, and ends them all."""
    with ExitStack() as stack:
        before = {*threading.enumerate()}
        clients = [stack.enter_context(connected(server, sends)) for _ in range(CLIENTS)]
        assert ask(server.port, "/metrics").code == 200
        assert {*threading.enumerate()} == before
        assert until(lambda: sum(not is_over(client) for client in clients) <= CONNECTIONS, SECONDS)
        assert until(lambda: all(is_over(client) for client in clients), SECONDS)


def test_a_byte_now_and_then_prolongs_nothing(server: PageServer) -> None:
    with connected(server, b"GET /metrics HTTP/1.1\r\n") as client:
        client.sendall(b"X: y\r\n")

        def is_cut() -> bool:
            try:
                client.sendall(b"X: y\r\n")
            except OSError:
                return True
            return False

        assert until(is_cut, SECONDS)


@pytest.mark.slow
def test_who_does_not_read_the_answer_is_ended(server: PageServer) -> None:
    with ExitStack() as stack:
        clients = []
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(SECONDS)
            client.connect(("127.0.0.1", server.port))
            client.sendall(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
            clients.append(client)
        assert ask(server.port, "/metrics").code == 200
        assert until(lambda: not server.connections, SECONDS)
        assert all(len(read(client)) < len(LONG) for client in clients)


@pytest.mark.slow
def test_those_who_asked_are_kept_before_those_who_did_not(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "LIFE_SECONDS", SECONDS)
    with ExitStack() as stack:
        reader = stack.enter_context(connected(server, b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n"))
        reader.recv(1)
        for _ in range(CLIENTS):
            stack.enter_context(connected(server))
        assert len(read(reader)) >= len(LONG)


NO_REQUESTS: Final = {
    "no path": b"GET\r\n\r\n",
    "junk": b"\x00\xff junk \r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(range(160)),
    "a giant header": b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "a giant path": b"GET /" + b"z" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("sends", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_is_refused_and_not_repeated(server: PageServer, sends: bytes) -> None:
    """The answer, where one comes through, is of our own words; the connection ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as client:
        with suppress(ConnectionError):
            client.sendall(sends)
        found = read(client)
    head, _, body = found.partition(b"\r\n\r\n")
    assert not found or (head.startswith(b"HTTP/1.") and b" 400 " in head and body == b"bad request\n")
    assert ask(server.port, "/metrics").code == 200


def test_a_connection_carries_one_request(server: PageServer) -> None:
    with connected(server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50) as client:
        assert read(client).count(b"HTTP/1.1 200 OK") == 1


def test_answers_tell_what_they_are_and_nothing_of_what_made_them(server: PageServer) -> None:
    found = {}
    requests = {("GET", "/metrics"): 200, ("HEAD", "/metrics"): 200, ("GET", "/x"): 404, ("POST", "/metrics"): 405}
    for (method, path), code in {**requests, ("GET", "/broken"): 500}.items():
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        client.request(method, path)
        answer = client.getresponse()
        found[method, path] = answer, answer.read()
        client.close()
        assert answer.status == code
        assert (answer.headers["Server"], answer.headers["Cache-Control"]) == ("TokenMill", "no-store")
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert "ython" not in str(answer.headers)
    assert found["GET", "/x"][1] == b"there are /metrics, /long, /broken\n"
    assert found["POST", "/metrics"][0].headers["Allow"] == "GET, HEAD"
    assert found["GET", "/broken"][1] == b"internal server error\n"
    head, get = found["HEAD", "/metrics"], found["GET", "/metrics"]
    assert (head[1], head[0].headers["Content-Length"]) == (b"", str(len(get[1])))


def test_prometheus_chooses_format_names_and_compression(server: PageServer) -> None:
    url = f"http://127.0.0.1:{server.port}/metrics"
    headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert gzip.decompress(answer.read()).endswith(b"# EOF\n")
    assert [name for name, _ in parse(ask(server.port, "/metrics?name[]=other").text)] == ["other"]


def test_few_descriptors_leave_most_of_them_to_the_work() -> None:
    """A quarter of what the process may open, and never more than a crowd."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        found = []
        for allowed in (1024, 200, 16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, before[1]))
            found.append(most_connections())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == [CONNECTIONS, 50, 8]


def test_the_end_closes_all_connections_and_frees_the_address() -> None:
    descriptors = set(Path("/proc/self/fd").iterdir())
    server = PageServer("127.0.0.1", 0, {})
    server.start()
    port = server.port
    with connected(server, b"GET / HT") as client:
        assert ask(port, "/").code == 404
        server.stop()
        assert read(client) == b""
    assert ask(port, "/").code == 0
    assert set(Path("/proc/self/fd").iterdir()) <= descriptors
    again = PageServer("127.0.0.1", port, {})
    again.start()
    again.stop()


def test_a_client_that_resets_harms_nobody(server: PageServer) -> None:
    for _ in range(20):
        with connected(server, b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n") as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server.port, "/metrics").code == 200
    assert until(lambda: not server.connections, SECONDS)
