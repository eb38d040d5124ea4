"""A small, polite crawler: each page becomes a document whose id is its address.

    python examples/crawler.py https://docs.example/ --limit 100

It stays on the hosts where it starts, keeps to their robots.txt, and waits between two requests. A page is in Kafka
before the next one is fetched, once (an idempotent producer), and Ctrl-C or SIGTERM ends it after the page at hand.
What to take from here is `Sender`.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import asyncio
import hashlib
import json
import signal
from collections import deque
from collections.abc import Iterator
from html.parser import HTMLParser
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser

import aiohttp
from aiokafka import AIOKafkaProducer

AGENT = "tokenmill-example-crawler"
LONGEST_ID = 128  # bytes; what the service takes unless its setting max_id_bytes says more
LARGEST_PAGE = 4 << 20  # bytes; more of a page is not read
SECONDS = 20.0  # for one request
HIDDEN = {"head", "noscript", "script", "style", "template"}  # what no reader sees


class Page(NamedTuple):
    """What a fetch brought."""

    url: str
    text: str
    links: list[str]


class Sender:
    """Sends pages to a topic; on exit all of them are acknowledged."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Connect to nothing yet."""
        self._topic = topic
        # For a cluster with logins: security_protocol, sasl_mechanism, ssl_context, … are arguments as well.
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)

    async def send(self, page: Page) -> None:
        """Send a page; on return it is in Kafka. The key keeps all versions of a page in one partition, in order."""
        url = page.url.encode()
        name = page.url if len(url) <= LONGEST_ID else f"sha256:{hashlib.sha256(url).hexdigest()}"
        value = json.dumps({"id": name, "text": page.text}, ensure_ascii=False).encode()
        await self._producer.send_and_wait(self._topic, value, key=url)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()


class Text(HTMLParser):
    """Collects what a reader of a page sees, and where its links lead."""

    def __init__(self) -> None:
        """Have read nothing yet."""
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, or the beginning of what is not shown."""
        self._hidden += tag in HIDDEN
        if tag == "a" and (target := dict(attrs).get("href")):
            self.links.append(target)

    def handle_endtag(self, tag: str) -> None:
        """Note the end of what is not shown."""
        self._hidden -= tag in HIDDEN and self._hidden > 0

    def handle_data(self, data: str) -> None:
        """Keep what is shown."""
        if not self._hidden and data.strip():
            self.words.append(" ".join(data.split()))


class Web:
    """Fetches pages, one at a time, where it may."""

    def __init__(self, session: aiohttp.ClientSession, delay: float) -> None:
        """Know no robots.txt yet."""
        self._session = session
        self._delay = delay
        self._rules: dict[str, RobotFileParser] = {}

    async def fetch(self, url: str) -> Page | None:
        """Return a page, None for what is not there, is no HTML, or must not be fetched."""
        if not (await self._rules_of(url)).can_fetch(AGENT, url):
            return None
        found = await self._get(url)
        if found is None:
            return None
        reader = Text()
        reader.feed(found)
        return Page(url, "\n".join(reader.words), list(_absolute(url, reader.links)))

    async def _rules_of(self, url: str) -> RobotFileParser:
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self._rules:
            rules = RobotFileParser()
            rules.parse((await self._get(f"{host}/robots.txt", kind="text/plain") or "").splitlines())
            self._rules[host] = rules
        return self._rules[host]

    async def _get(self, url: str, kind: str = "text/html") -> str | None:
        await asyncio.sleep(self._delay)
        try:
            # A redirect is an address of its own, with rules of its own.
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status != 200:  # noqa: PLR2004 - HTTP's OK
                    print(f"{url}: {answer.status} {answer.reason}")
                    return None
                if answer.content_type != kind:
                    return None
                return (await _start_of(answer)).decode(answer.charset or "utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, LookupError) as error:  # LookupError: no such encoding
            print(f"{url}: {error!r}")
            return None


async def _start_of(answer: aiohttp.ClientResponse) -> bytes:
    """Return a page, cut off where it becomes too large."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > LARGEST_PAGE:
            break
    return bytes(content[:LARGEST_PAGE])


def _absolute(url: str, links: list[str]) -> Iterator[str]:
    """Yield where links lead that stay on the page's host."""
    for link in links:
        target = urldefrag(urljoin(url, link)).url
        if urlsplit(target)[:2] == urlsplit(url)[:2]:
            yield target


async def crawl(arguments: argparse.Namespace, stopped: asyncio.Event) -> int:
    """Send pages until there are no more, the limit is reached, or ``stopped``; return how many were sent."""
    waiting, seen, sent = deque(arguments.url), set(arguments.url), 0
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with (
        Sender(arguments.bootstrap_servers, arguments.topic) as sender,
        aiohttp.ClientSession(headers={"User-Agent": AGENT}, timeout=timeout) as session,
    ):
        web = Web(session, arguments.delay)
        while waiting and sent < arguments.limit and not stopped.is_set():
            page = await web.fetch(waiting.popleft())
            if page is None:
                continue
            await sender.send(page)
            sent += 1
            print(page.url, flush=True)
            new = [link for link in dict.fromkeys(page.links) if link not in seen]
            seen.update(new)
            waiting.extend(new)
    return sent


async def main() -> None:
    """Crawl as the command line says."""
    parser = argparse.ArgumentParser(description="Pages into Kafka, each as a document.")
    parser.add_argument("url", nargs="+", help="where to start")
    parser.add_argument("--topic", default="raw-text")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--limit", type=int, default=1000, help="most pages")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds before each request")
    arguments = parser.parse_args()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(f"{await crawl(arguments, stopped)} pages sent to {arguments.topic}")


if __name__ == "__main__":
    asyncio.run(main())
