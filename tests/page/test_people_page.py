"""What people see: figures that move, texts that stay texts, in light and dark, on a phone, by keyboard.

The service behind it is a server of ours with a status made by hand, for a real one shows no hostile names. Pictures
are in ``build/page``, for people.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry, Gauge

from docs.generators.site import ROOT
from tests.milled_store import STREAM, store_of
from tests.scraping import free_port
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import SHOWN, Fleet
from tokenmill.app.telemetry.server import Probes, serving
from tokenmill.app.telemetry.status_document import StatusSnapshot, WorkerStatus
from tokenmill.consumers.prometheus import serve_metrics
from tokenmill.errors import DamagedError

pytestmark = pytest.mark.page

PICTURES: Final = ROOT / "build/page"
HOSTILE: Final = "<img src=x onerror='window.broken=1'><script>window.broken=1</script>\"&lt;\u202e"
SECONDS: Final = 60.0  # longest wait for what comes in two or three
STEPS: Final = {"normalize": (940, 0), "min_chars": (900, 40), "gopher": (610, 290)}
WAITS: Final = {"wait_seconds_total": 1, "work_seconds_total": 3}
TOKEN: Final = "t0ken-of-the-page"  # noqa: S105 - as it says


@dataclass
class Mill:
    """A service that seems to work: each look finds ``done`` records more."""

    settings: Settings
    records: int = 1000
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
    step: int = 50
    not_ready: str | None = None

    def document(self) -> dict[str, Any]:
        """Return what ``/api/status`` answers, and work on."""
        self.records += self.step
        share = self.records / 1000
        self.fleet.heard(
            "mill-1", 7, [*self._samples(share), ("tokenmill_blocks_total", {"sink": "topic"}, 30 * share)]
        )
        tokens = "tokens.raw-text.train/0"
        said = {"raw-text/0": self._raw(share), tokens: {"position": self.records // 60, "block": int(28 * share)}}
        said["raw-text/9"] = {"position": 12}
        said |= self.said
        return StatusSnapshot(
            role="serve",
            settings=self.settings,
            not_ready=self.not_ready,
            away_since=None,
            said=said,
            owners={
                tokens: "segment",
                **dict.fromkeys((name for name in said if name not in (tokens, "raw-text/9")), "mill-1"),
            },
            ends={"raw-text/0": 4000 + self.records // 2, tokens: self.records // 50, "raw-text/9": 12},
            workers=self._workers(said),
            eras={"raw-text.train": self.records // 200, f"raw-text.{HOSTILE}": 1},
        ).document() | {"counted": self.fleet.sums(SHOWN)}

    def _raw(self, share: float) -> dict[str, Any]:
        chain = {"block": int(30 * share), "open_tokens": 312, "documents": 600, "bytes": 10**6, "tokens": 10**5}
        letter = {"offset": 17, "reason": HOSTILE, "at": time.time() - 30}
        return {"position": self.records, "chains": {"train": chain}, "dead_letter": letter}

    def _workers(self, said: dict[str, Any]) -> list[WorkerStatus]:
        counts, stored = self.fleet.counts("mill-1"), {"blocks": self.records}
        return [
            WorkerStatus("mill-1", "mill", "running", 7, 0, None, tuple(said), counts),
            WorkerStatus("mill-2", "mill", "ended", None, 3, 4.0, ()),
            WorkerStatus("segment", "segment", "running", 9, 0, None, (), stored),
        ]

    @staticmethod
    def _samples(share: float) -> Iterator[tuple[str, dict[str, str], float]]:
        raw, train = {"topic": "raw-text"}, {"topic": "raw-text", "split": "train"}
        yield "tokenmill_records_consumed_total", raw, 1000 * share
        yield "tokenmill_consumed_bytes_total", raw, 3e6 * share
        yield "tokenmill_documents_total", train, 610 * share
        yield "tokenmill_tokens_produced_total", train, 700_000 * share
        yield "tokenmill_dead_letters_total", {**raw, "reason": "not_utf8"}, 5.0
        yield "tokenmill_consumer_lag_seconds", {**raw, "partition": "0"}, 40.0 - share
        for reason, count in {"too_short": 40.0, HOSTILE: 290.0}.items():
            yield "tokenmill_documents_filtered_total", {**train, "reason": reason}, count
        for step, (passed, out) in STEPS.items():
            for result, count in (("passed", passed), ("filtered", out)):
                yield "tokenmill_step_documents_total", {**train, "step": step, "result": result}, count * share


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program, "no chromium: install Debian's package of that name, or set CHROMIUM to a browser's path"
    PICTURES.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def trainer() -> Iterator[str]:
    registry = CollectorRegistry()
    for name, value in {"step": 12, "behind_eras": 2, "tokens_total": 5e6, **WAITS}.items():
        gauge = Gauge(f"tokenmill_trainer_{name}", name, ["stream", "rank"], registry=registry)
        gauge.labels(STREAM, HOSTILE).set(value)
    server = serve_metrics(0, registry=registry)
    yield f"127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
def mill(tmp_path: Path, trainer: str) -> Iterator[Mill]:
    store_of(tmp_path, [*("a" * 40 for _ in range(9)), *[HOSTILE] * 3])
    mill = Mill(Settings(metrics_port=free_port(), group=HOSTILE, store=tmp_path, trainers=(trainer,)))
    with serving(mill.settings, [mill.fleet], Probes(), mill.document, {"group": HOSTILE}):
        yield mill


@dataclass
class Look:
    page: Any
    asked: list[str]
    errors: list[str]

    def rows(self, section: str) -> list[list[str]]:
        found: list[list[str]] = self.page.eval_on_selector_all(
            f"#{section} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return found

    def until(self, condition: str) -> None:
        """Wait until an expression is true there. What Playwright has for it is forbidden by the page's policy."""
        deadline = time.monotonic() + SECONDS
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, condition
            self.page.wait_for_timeout(50)


@pytest.fixture
def look(browser: Any, mill: Mill, request: pytest.FixtureRequest) -> Iterator[Look]:
    """Yield the page after the second answer; the parameter is options of the browser's window."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **getattr(request, "param", {})})
    page = context.new_page()
    found = Look(page, [], [])
    page.on("request", lambda made: found.asked.append(made.url))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("console", lambda said: found.errors.append(said.text) if said.type == "error" else None)
    page.goto(mill.settings.page_url)
    if mill.settings.http_token is None:
        found.until("seen.length > 2")
    yield found
    assert found.errors == []
    context.close()


def test_figures_come_and_move(look: Look) -> None:
    flow = look.page.inner_text("#flow")
    assert "records/s" in flow
    assert "…" not in flow
    lines = look.page.inner_text("[aria-labelledby=lines-h]")
    assert "caught up in" in lines
    before = look.page.inner_text("#flow b >> nth=2")
    look.until(f"document.querySelectorAll('#flow b')[2].textContent !== {before!r}")
    assert [row[:2] for row in look.rows("workers")] == [
        ["mill-1", "● running"], ["mill-2", "○ ended"], ["segment", "● running"],
    ]  # fmt: skip
    assert look.rows("workers")[1][3] == "3"
    assert [row[0] for row in look.rows("funnel")] == [
        "records",
        "dead letters",
        *(f"after {s}" for s in STEPS),
        "kept",
    ]
    assert {row[0]: row[2] for row in look.rows("partitions")}["raw-text/9"] == "○ unowned"
    assert look.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") < 5000


def test_nothing_is_asked_of_anyone_else_and_texts_stay_texts(look: Look, mill: Mill) -> None:
    assert {url.rpartition("/")[0] for url in look.asked if not url.startswith("data:")} <= {
        (mill.settings.page_url or "").rstrip("/"), f"{mill.settings.page_url}api",
    }  # fmt: skip
    look.page.click("#settings summary")
    assert HOSTILE in {row[0] for row in look.rows("reasons")}
    assert look.rows("letters")[0][2] == HOSTILE
    assert f"raw-text.{HOSTILE}" in {row[0] for row in look.rows("eras")}
    assert ["group", HOSTILE, HOSTILE] in look.rows("settings")
    assert look.page.evaluate("[window.broken, document.querySelectorAll('main img, main script').length]") == [None, 0]


def test_lengths_trainers_and_texts_come_from_the_store(look: Look, mill: Mill) -> None:
    look.until("document.querySelector('#trainers tbody').rows[0].cells.length > 1")
    trainer = mill.settings.trainers[0]
    assert look.rows("trainers") == [[f"{trainer}, rank {HOSTILE}", STREAM, "12", "5M", "2", "25 %"]]
    assert ["32 to 63", "9", ""] in look.rows("lengths")
    assert not any("texts" in url for url in look.asked)
    look.page.click("#blocks summary")
    look.until("document.querySelectorAll('#blocks .text').length === 1")
    text = look.page.text_content("#blocks")
    assert "┃ 10" in text
    assert HOSTILE[:40] in text
    assert look.page.evaluate("[window.broken, document.querySelectorAll('main img, main script').length]") == [None, 0]


def test_what_is_halted_is_named_with_what_helps_and_what_is_gone_is_told(look: Look, mill: Mill) -> None:
    mill.said["raw-text/3"] = {"position": 5, "halted": "x", "halted_by": DamagedError.brief}
    mill.said["raw-text/4"] = {"position": 5, "waiting": "x", "waiting_by": HOSTILE}
    look.until("!document.getElementById('stops').hidden")
    stops = look.page.text_content("#stops")
    assert (
        "raw-text/3 ■ halted: committed bytes are damaged. See the worker's log, and tokenmill repair STREAM" in stops
    )
    assert HOSTILE in stops
    assert look.rows("partitions")[0][2] == "■ halted"
    assert "1 halted, 1 waiting" in look.page.inner_text("#state")
    mill.not_ready = "no broker answers"
    look.until("document.getElementById('state').textContent.includes('not ready: no broker answers')")


def test_an_idle_service_sends_a_few_bytes(look: Look, mill: Mill) -> None:
    """The page gets 304 and shows what it knows."""
    mill.step = 0
    mill.said["raw-text/0"] = mill._raw(1.0)
    with look.page.expect_response(lambda answer: answer.status == 304 and "status" in answer.url) as found:
        pass
    assert "content-length" not in found.value.headers
    look.until("document.getElementById('flow').textContent.includes('0 records/s')")


WINDOWS: Final = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
    "phone-dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}


@pytest.mark.parametrize("look", WINDOWS.values(), ids=WINDOWS.keys(), indirect=True)
def test_it_fits_any_window(look: Look, mill: Mill, request: pytest.FixtureRequest) -> None:
    mill.said["raw-text/3"] = {"position": 5, "halted": "x", "halted_by": DamagedError.brief}
    look.page.click("#blocks summary")
    look.until("!document.getElementById('stops').hidden && seen.length > 3 && document.querySelector('#blocks .text')")
    assert look.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert look.page.evaluate(CONTRAST) >= 4.5
    look.page.screenshot(path=PICTURES / f"{request.node.callspec.id}.png", full_page=True)


CONTRAST: Final = """() => {
  const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(part => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const under = at => {
    const color = getComputedStyle(at).backgroundColor;
    return color !== "rgba(0, 0, 0, 0)" ? color : under(at.parentElement);
  };
  const shown = [...document.querySelectorAll("main *, header *")].filter(one => one.offsetParent && one.innerText);
  return Math.min(...shown.map(one => {
    const [a, b] = [light(getComputedStyle(one).color), light(under(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
}"""
"""Of all texts with what is under them, the lowest contrast as WCAG has it."""


def test_the_keyboard_reaches_all_of_it(look: Look) -> None:
    reached = []
    for _ in range(30):
        look.page.keyboard.press("Tab")
        place = "document.activeElement"
        reached.append(look.page.evaluate(f"{place}.closest('section')?.id || {place}.className || {place}.hash"))
        if reached[-1] == "settings":
            break
    assert reached[0] == "skip"
    assert {"workers", "partitions", "funnel", "letters", "eras", "lengths", "blocks", "settings", "#flow"} <= set(
        reached
    )
    look.page.keyboard.press("Enter")
    assert look.page.evaluate("document.querySelector('#settings details').open")


def test_the_page_asks_for_the_token(browser: Any) -> None:
    mill = Mill(Settings(metrics_port=free_port(), http_token=TOKEN))  # type: ignore[arg-type]
    with serving(mill.settings, [mill.fleet], Probes(), mill.document):
        page = browser.new_page()
        page.goto(mill.settings.page_url)
        for word in ("wrong", TOKEN):
            page.wait_for_selector("#login", state="visible")
            page.fill("#token", word)
            page.keyboard.press("Enter")
        page.wait_for_selector("#login", state="hidden")
        Look(page, [], []).until("seen.length > 1")
        assert "●" in page.inner_text("#state")
        assert TOKEN not in page.url
        page.close()
