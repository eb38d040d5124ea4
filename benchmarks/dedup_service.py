"""What a service pays for ``dedup``: a mill with ``near`` beside one without, on texts without duplicates."""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console

from benchmarks.contenders import Contender, by_tokenmill
from benchmarks.corpus import shuffled
from benchmarks.field import Documents
from benchmarks.rounds import Track
from benchmarks.workplace import gpt2_in
from tokenmill.app.local.broker import Broker

CONTENDERS: Final = (
    Contender("plain", by_tokenmill.start),
    Contender("near", partial(by_tokenmill.start, dedup="near")),
)


def mill_of_plain(directory: Path, rounds: int, text_bytes: int, console: Console) -> dict[str, Any]:
    """Return megabytes of text for each CPU second of one mill, and in each second, as medians, and their ratios."""
    documents = Documents("3.7 kB", 3670, text_bytes, text_bytes)
    found: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in CONTENDERS}
    with Broker(directory / "broker") as broker:
        track = Track(broker, directory / "runs", gpt2_in(directory), order=shuffled)
        for number in range(rounds):
            for contender in CONTENDERS if number % 2 else reversed(CONTENDERS):
                with console.status(f"round {number + 1} of {rounds}: the mill, {contender.name}"):
                    run = track.run(contender, documents, 1)
                spent = run.measured.cpu_seconds
                cpu = {f"{role}_cpu": run.topic.text_bytes / 1e6 / seconds for role, seconds in spent.items()}
                found[contender.name].append({"wall": run.rates["text_mb_per_s"], **cpu})
    pairs = list(zip(found["near"], found["plain"], strict=True))
    return {
        "text_mb_per_s": {
            name: {what: round(median(one[what] for one in runs), 1) for what in runs[0]}
            for name, runs in found.items()
        },
        "mill_of_plain": round(median(near["mill_cpu"] / plain["mill_cpu"] for near, plain in pairs), 3),
        "mill_of_plain_by_wall_clock": round(median(near["wall"] / plain["wall"] for near, plain in pairs), 3),
    }
