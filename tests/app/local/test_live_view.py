"""The live view: nothing that people look for is cut on any terminal; rates, and words for brokers that are away."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from tokenmill.app.local import live_view
from tokenmill.app.local.live_view import LONGEST, WINDOW_SECONDS, LiveScene, Rates, TrainingStatus, _plain_line, _short
from tokenmill.app.supervisor.supervisor import Row, Status
from tokenmill.app.telemetry.status_document import WorkerStatus

HUGE = 12_345_678_901_234
LONG = "texts-of-the-whole-web-of-the-year-2026-in-all-languages-and-then-some-" * 2
LETTER = {"offset": 4711, "reason": "invalid_utf8", "at": 20.0}


def worker(name: str, *partitions: str, role: str = "mill", **counters: float) -> WorkerStatus:
    return WorkerStatus(name, role, "running", 12345, 0, None, partitions, counters)


def partition(number: int, *, topic: str = "raw-text", size: int = 7, **more: object) -> Row:
    sizes = dict.fromkeys(("block", "stored", "segments", "documents", "bytes", "tokens"), size)
    chain = {**sizes, "open_tokens": 3, "messages": 0, "note": None}
    return {
        "topic": topic,
        "partition": number,
        "worker": "mill-1",
        "end": 2 * size,
        "position": size,
        "lag": size,
        "note": None,
        "dead_letter": None,
        "chains": [{**chain, "stream": f"{topic}.{split}"} for split in ("train", "held")],
        **more,
    }


def scene(*, size: int = 7, topic: str = "raw-text", name: str = "mill", training: bool = False) -> LiveScene:
    workers = (
        worker(f"{name}-1", f"{topic}/0", f"{topic}/1", tokens=size),
        worker(f"{name}-2", *(f"{topic}/{number}" for number in range(2, 12)), tokens=3 * size),
        worker("segment", role="segment", blocks=size),
        worker("sequencer", role="sequencer"),
    )
    partitions = (
        partition(0, topic=topic, size=size, worker=f"{name}-1"),
        partition(1, topic=topic, size=size, worker=None, dead_letter=LETTER),
    )
    status = Status({"dead_letters": size}, workers, partitions, eras={f"{topic}.train": size, f"{topic}.held": 1})
    trains = TrainingStatus(size, 3.25, float(size), 0.5) if training else None
    return LiveScene(f"{topic} at 127.0.0.1:9092", status, trains)


def rates(*looks: tuple[float, Mapping[str, Mapping[str, float]]]) -> Rates:
    found = Rates()
    for second, counters in looks:
        found.add(second, counters)
    return found


def rates_of(shown: LiveScene) -> Rates:
    return rates((0, {}), (1, {worker.name: worker.counters for worker in shown.status.workers}))


def rendered(shown: LiveScene, width: int) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(Group(*live_view._picture(shown, rates_of(shown), 75.0, width)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_view_shows_dead_letters_eras_and_a_rate_of_each_worker() -> None:
    lines = rendered(scene(), 80)
    assert rendered(scene(), 60)[-2:] == lines[-2:]
    assert rendered(scene(), 120)[-2].endswith("train 7, held 7")
    assert lines == [
        "",
        "01:15  raw-text at 127.0.0.1:9092",
        "28 documents · 0.0 MB · 0.00 MB/s · 28 tokens/s · lag 14 records ·",
        "28 blocks, 28 stored · 28 segments · 8 eras · 2 of 2 mills",
        "7 dead letters, the newest: invalid_utf8 (raw-text/1, offset 4711)",
        "",
        "worker     process  state    rate         partitions",
        "mill-1       12345  running  7 tokens/s   raw-text/0 raw-text/1",
        "mill-2       12345  running  21 tokens/s  10 partitions",
        "segment      12345  running  7 blocks/s   -",
        "sequencer    12345  running  -            -",
        "",
        "partition   worker  records  lag  blocks  stored  segments",
        "raw-text/0  mill-1       14    7      14      14        14",
        "raw-text/1  nobody       14    7      14      14        14",
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize(
    "large",
    [
        {},
        {"size": HUGE},
        {"topic": LONG},
        {"name": LONG},
        {"size": HUGE, "topic": LONG, "name": LONG},
        {"topic": "原文" * 40},
    ],
    ids=["plain", "huge numbers", "long topic", "long worker", "all of it", "wide characters"],
)
def test_no_number_is_cut_at_any_width(width: int, large: Mapping[str, object]) -> None:
    shown = scene(**large, training=True)  # type: ignore[arg-type]
    lines = rendered(shown, width)
    assert max(map(cell_len, lines)) <= width
    words = Counter(word.rstrip(";") for line in lines for word in line.split())
    size = large.get("size", 7)
    assert isinstance(size, int)
    assert words[_short(2 * size)] >= 2 * 3
    assert {_short(4 * size), _short(size), _short(3 * size), "12345", "running"} <= words.keys()
    assert words["running"] == 4
    assert any(line.startswith(f"{_short(size)} dead letter") and "invalid_utf8" in line for line in lines)
    together = " ".join(lines)
    assert f"{_short(size + 1)} eras" in together
    assert "50% waiting for data" in together
    if all(cell_len(str(name)) < width - 10 for name in large.values()):
        topic, name = large.get("topic", "raw-text"), large.get("name", "mill")
        assert {f"{topic}/0", f"{topic}/1", f"{name}-1", f"{name}-2", "nobody"} <= words.keys()


def test_why_a_partition_stands_is_told_in_full_below_the_table() -> None:
    """It is advice, so it takes the lines that it needs; the table's rows stay one line each."""
    reason = "records 21 to 29 were removed before they were milled; " * 4 + "begin a new stream with stream_suffix"
    shown = scene()
    halted = {**shown.status.partitions[0], "note": reason}
    shown = replace(shown, status=replace(shown.status, partitions=(halted, shown.status.partitions[1])))
    lines = rendered(shown, 80)
    assert lines[:15] == rendered(scene(), 80)
    assert " ".join(lines[15:]) == f"raw-text/0: {reason}"
    assert _plain_line(shown, rates_of(shown)).endswith(f" · raw-text/0: {reason}")


def test_a_log_line_has_eras_and_dead_letters_too() -> None:
    shown = scene()
    line = _plain_line(shown, rates_of(shown))
    assert "8 eras · 2 of 2 mills · 7 dead letters, the newest: invalid_utf8 (raw-text/1, offset 4711)" in line
    assert "28 tokens/s" in line
    clean = replace(shown, status=replace(shown.status, counters={}, partitions=(partition(0),)))
    assert "dead letter" not in _plain_line(clean, rates_of(clean))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7.6, "8"),
        (LONGEST, "9,999,999"),
        (LONGEST + 1, "10.0M"),
        (999_949_999, "999.9M"),
        (999_950_000, "1.0G"),
    ],
)
def test_a_number_has_nine_characters_at_most(number: float, text: str) -> None:
    assert _short(number) == text


def counted(**workers: float) -> Mapping[str, Mapping[str, float]]:
    return {name: {"documents": size, "tokens": size} for name, size in workers.items()}


def test_a_rate_is_growth_over_the_last_seconds() -> None:
    seen = [(second, counted(a=1000 if second < 10 else 1000 + 10 * (second - 9))) for second in range(20)]
    later = [(second, counted(a=1100)) for second in range(20, 20 + 2 * int(WINDOW_SECONDS))]
    assert rates(*seen).per_second("documents") == 10
    assert rates(*seen, *later).per_second("documents") == 0


def test_each_worker_has_a_rate_and_a_new_process_counts_from_0() -> None:
    """So what a worker says first was done since the look before. What a process before it counted is no debt of it."""
    assert rates().per_second("tokens") == rates((0, counted(a=5))).per_second("tokens") == 0
    assert rates((0, {}), (2, counted(a=300))).per_second("documents") == 150
    assert rates((0, {}), (2, counted(a=300)), (4, counted(a=300))).per_second("documents") == 75
    both = rates((0, counted(a=100, b=5000)), (1, counted(a=140, b=60)))
    assert [both.per_second("tokens", name) for name in ("a", "b", "nobody")] == [40, 60, 0]
    assert both.per_second("tokens") == 100


AWAY = "NO BROKER ANSWERS since "


def followed(end: int | None, away_since: float | None) -> LiveScene:
    mill = replace(worker("mill-1", "raw-text/0"), state="cut off" if away_since else "running")
    shown = partition(0, end=end, lag=None if end is None else end - 7)
    return LiveScene("raw-text at broker:9092", Status({}, (mill,), (shown,), away_since))


def test_lines_and_tables_say_that_no_broker_answers_and_since_when() -> None:
    away = followed(None, time.time() - 90)
    line, table = _plain_line(away, Rates()), "\n".join(rendered(away, 120))
    assert [words for words in (AWAY, "(90 s)", "lag unknown", "0 of 1 mills") if words not in line] == []
    assert [words for words in (AWAY, "cut off", "lag unknown") if words not in table] == []
    line = _plain_line(followed(12, None), Rates())
    assert (AWAY in line, "lag 5" in line) == (False, True)
    assert Status({}, (), ()).lag is None
