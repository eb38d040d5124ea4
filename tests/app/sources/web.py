"""A web server on loopback, with or without ranges, entity tags and manners."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote

Server = TypeVar("Server", bound=ThreadingHTTPServer)


@dataclass
class Web:
    files: dict[str, bytes]
    ranges: bool = True
    tags: bool = True
    moved: dict[str, str] = field(default_factory=dict)  # where those are sent who ask for a name
    cut: int | None = None  # bytes after which the next answer ends, and the connection with it
    address: str = ""
    asked: list[str] = field(default_factory=list)  # method, path and range


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: Python 3.11 parses the lines of a traceback, and parsing in two threads at once can fail."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            data = web.files.get(unquote(self.path).lstrip("/"))
            if data is None or self.path in web.moved:
                self.send_response(302 if self.path in web.moved else 404)
                self.send_header("Location", web.moved.get(self.path, ""))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if web.ranges else None
            start = int(wanted[1]) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            if web.tags:
                self.send_header("ETag", f'"{hash(data)}"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if self.command == "GET":
                part, web.cut = data[start:][: web.cut], None
                self.wfile.write(part)
                if len(part) < len(data) - start:
                    self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 - the library's names

        def log_message(self, *_: object) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    web.address = f"http://127.0.0.1:{server.server_port}"
    with running(server):
        yield web
