"""How fast text becomes blocks on disk with brokers that are far away, beside the same brokers near by.

Both ways lead through one proxy, which delays answers or does not: so both pay for it alike, and the delay alone
differs. A broker answers the requests of a connection one after the other.
"""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console

from benchmarks.field import CONTENDERS, Documents
from benchmarks.rounds import Track
from benchmarks.workplace import gpt2_in
from tests.brokers import OpenBroker
from tests.faults.proxy import Proxy
from tests.scraping import free_port
from tokenmill.app.local.broker import HOST, SETTINGS

PARTITIONS: Final = 4
PRODUCE, FETCH = 0, 1
"""Numbers of Kafka's APIs."""
DELAYS: Final = {PRODUCE: 0.4, FETCH: 0.05}
"""Seconds until an answer leaves; the first are those of brokers that keep their logs in an object store."""


def far_of_near(directory: Path, rounds: int, text_bytes: int, console: Console) -> dict[str, Any]:
    """Return megabytes of text a second near by and far away, as medians, and their ratio round by round."""
    documents = Documents("3.7 kB", 3670, text_bytes, text_bytes)
    rates: dict[str, list[float]] = {"near": [], "far": []}
    port = free_port()
    with Proxy() as proxy:
        broker = OpenBroker(
            directory / "broker",
            port=port,
            listeners=("PROXIED",),
            settings={
                "listener.security.protocol.map": f"{SETTINGS['listener.security.protocol.map']},PROXIED:PLAINTEXT",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{port},PROXIED://{proxy.address}",
            },
        )
        proxy.target = broker.address("PROXIED")
        with broker:
            track = Track(broker, directory / "runs", gpt2_in(directory), partitions=PARTITIONS)
            through = replace(track, servers=proxy.address)
            for number in range(rounds):
                for name in ("near", "far") if number % 2 else ("far", "near"):
                    with console.status(f"round {number + 1} of {rounds}: a broker that is {name}"):
                        proxy.answer_delays = DELAYS if name == "far" else {}
                        run = through.run(CONTENDERS[0], documents, 1)
                        proxy.answer_delays = {}
                    rates[name].append(run.rates["text_mb_per_s"])
    ratio = median(far / near for far, near in zip(rates["far"], rates["near"], strict=True))
    return {
        "delays_ms": {"produce": DELAYS[PRODUCE] * 1000, "fetch": DELAYS[FETCH] * 1000},
        "partitions": PARTITIONS,
        "text_mb_per_s": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "ratio": round(ratio, 3),
    }
