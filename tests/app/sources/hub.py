"""A hub of data sets, as small as `load_dataset` lets it be: one data set, to which somebody pushes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, unquote_plus, urlsplit

NAME = "owner/name"
FILE = "train.jsonl"
README = "README.md"
OLD_NAME = "single"
"""What the data set was called before names had owners; who asks for it is sent to the new one."""
_API = f"/api/datasets/{NAME}"
_OLD = f"/api/datasets/{OLD_NAME}"


class Hub(ThreadingHTTPServer):
    """Serves the newest commit until it is asked which one that is; then the next one is pushed."""

    def __init__(self, contents: list[bytes], readme: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.readme = readme
        self.commits = {f"{number:040x}": content for number, content in enumerate(contents, 1)}
        self.newest = 0

    @property
    def address(self) -> str:
        """What `HF_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, revision: str | None) -> str | None:
        """Return the commit that a revision is, None for one that is not there."""
        newest = [*self.commits][min(self.newest, len(self.commits) - 1)]
        found = newest if revision in (None, "main") else revision
        return found if found in self.commits else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == _OLD or path.startswith(f"{_OLD}/revision/"):
            self._answer(307, b"", {"Location": path.replace(_OLD, _API, 1)})
        elif path in (_API, f"{_API}/revision/main"):
            commit = self.server.commit(None)
            self.server.newest += 1
            self._json({"id": NAME, "sha": commit})
        elif path.startswith(f"{_API}/revision/"):
            commit = self.server.commit(path.rpartition("/")[2])
            self._json({"id": NAME, "sha": commit} if commit else None)
        elif path.startswith(f"{_API}/tree/"):
            revision, _, folder = path.removeprefix(f"{_API}/tree/").partition("/")
            self._json(None if folder else self._files(revision))
        else:
            self._file(path)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        path = unquote(urlsplit(self.path).path)
        wanted = self._files(path.removeprefix(f"{_API}/paths-info/"))
        self._json([file for file in wanted or [] if str(file["path"]) in unquote_plus(asked)])

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _files(self, revision: str) -> list[dict[str, object]] | None:
        commit = self.server.commit(revision)
        if commit is None:
            return None
        sizes = {FILE: len(self.server.commits[commit]), README: len(self.server.readme)}
        return [{"type": "file", "path": file, "size": size, "oid": commit} for file, size in sizes.items() if size]

    def _file(self, path: str) -> None:
        revision, _, name = path.removeprefix(f"/datasets/{NAME}/resolve/").partition("/")
        commit = self.server.commit(revision)
        body = {FILE: self.server.commits.get(commit or "", b""), README: self.server.readme}.get(name)
        if commit and body:
            self._answer(200, body, {"X-Repo-Commit": commit, "ETag": f'"{commit}-{name}"'})
        else:
            own = tuple(f"{_API}/{kind}/" for kind in ("revision", "tree", "paths-info"))
            other = path.startswith("/api/datasets/") and not path.startswith(own)
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound" if other else "EntryNotFound"})

    def _json(self, found: object) -> None:
        if found is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub(contents: list[bytes], readme: bytes = b"") -> Iterator[Hub]:
    """Serve a data set whose commits have these contents."""
    with Hub(contents, readme) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
