"""The page for people at ``/``, the JSON that it asks for, and who may ask.

The page is one file, which loads nothing: its policy allows its own style and script, by their hashes, and questions to
the server that it came from. It holds no data, so it is for all; the answers to its questions are for those who have
the token, where there is one.
"""

import hmac
import json
import re
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import blake2b, sha256
from http import HTTPStatus
from importlib import metadata, resources
from typing import Any, Final

from aiohttp.web import BaseRequest
from pydantic import SecretStr

from tokenmill.page_server import Page
from tokenmill.redaction import redacted

from ..settings import Settings
from ..settings.explain import DEFAULT_ORIGIN
from ..settings.values import as_variable

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
FILE: Final = "people_page.html"
PACKAGES: Final = ("tokenmill", "aiokafka", "faust-streaming", "tokenizers", "gigatoken", "numpy")
"""Whose versions people are asked for when something is wrong."""
A_SECOND: Final = 50.0
"""Requests that are answered for good ..."""
AT_ONCE: Final = 200.0
"""... and those that may come at once. A page asks twice in five seconds, Prometheus less often."""

MakePage = Callable[[BaseRequest], Page]


def people_page() -> MakePage:
    """Return what gives the page."""
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    policy = [
        "default-src 'none'",
        *(f"{kind}-src {_hashed(text, kind)}" for kind in ("script", "style")),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    page = Page(text.encode(), content_type=HTML, headers={"Content-Security-Policy": "; ".join(policy)})
    return lambda _: page


def _hashed(text: str, element: str) -> str:
    """Return what a policy calls the content of the only element of this name."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def told(document: Callable[[], Mapping[str, Any]]) -> MakePage:
    """Return what answers with a document as JSON, or with 304 to who has it.

    A document that differs in nothing but ``at``, the moment of its making, is the same.
    """

    def page(request: BaseRequest) -> Page:
        known = document()
        tag = f'"{blake2b(_json({**known, "at": None}), digest_size=12).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return Page(b"", HTTPStatus.NOT_MODIFIED, JSON, {"ETag": tag})
        return Page(_json(known) + b"\n", content_type=JSON, headers={"ETag": tag})

    return page


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def in_force(settings: Settings, origins: Mapping[str, str]) -> dict[str, Any]:
    """Return all settings, each with where it came from, and versions. Secrets are asterisks."""
    values = {name: (getattr(settings, name), field.default) for name, field in Settings.model_fields.items()}
    return {
        "settings": {
            name: {
                "value": redacted(as_variable(value)),
                "from": DEFAULT_ORIGIN if value == default else origins.get(name, "set where this was started"),
            }
            for name, (value, default) in values.items()
        },
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Asked:
    """Those who ask: they have the token, where there is one, and are answered at a bounded rate, all together."""

    def __init__(self, token: SecretStr | None, now: Callable[[], float] = time.monotonic) -> None:
        self._expected = None if token is None else f"Bearer {token.get_secret_value()}".encode()
        self._now = now
        self._left, self._at = AT_ONCE, now()

    def only(self, make: MakePage) -> MakePage:
        """Return what answers as ``make``, or with 401 or 429."""

        def page(request: BaseRequest) -> Page:
            # Who has no token takes nothing from the rate of those who have it.
            if not self._may(request.headers.get("Authorization", "")):
                words = b"this asks for the token of the setting http_token, as Authorization: Bearer TOKEN\n"
                return Page(words, HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})
            if not self._paced():
                words = b"too many requests: ask again in a second\n"
                return Page(words, HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
            return make(request)

        return page

    def _may(self, said: str) -> bool:
        return self._expected is None or hmac.compare_digest(said.encode("utf-8", "surrogateescape"), self._expected)

    def _paced(self) -> bool:
        now = self._now()
        self._left, self._at = min(AT_ONCE, self._left + (now - self._at) * A_SECOND), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
