"""``docs/trainer_metrics.md``, from the code; ``make docs`` writes it."""

from typing import Final

from tokenmill.consumers.prometheus import described

HEAD: Final = """\
# Metrics of a trainer

<!-- Made by `make docs` from the code; a test compares. -->

`Batches` counts what it gives a training loop, and how long the loop waits for it:

```python
print(batches.metrics.tokens_per_second, batches.metrics.wait_ratio, batches.behind())
```

`metrics.since(earlier)` gives the same for a part of the run, such as the last hundred steps. A `wait_ratio` near 0
says that the model is the bottleneck, one near 1 that the data is; where `store_wait_seconds` makes most of it, text
comes more slowly than it is trained on. `behind()` says how many blocks and eras the store has beyond the next step.

For Prometheus (`pip install prometheus-client aiohttp`; the extra `train` has both), register a collector in the
training process; the numbers of the service are in [metrics.md](metrics.md).

```python
from prometheus_client import REGISTRY
from tokenmill.consumers.prometheus import BatchesCollector, serve_metrics

REGISTRY.register(BatchesCollector(batches, rank="0"))
serve_metrics(9465)
```

That is at 127.0.0.1; `serve_metrics(9465, "0.0.0.0")` lets other hosts ask. One thread answers, and ends connections
after ten seconds, whatever their other end does.

Every number has the label `stream` and those that the collector was given, and each of a mixture's streams `part`, its
name there. They are read when they are asked for; the counters begin with the process.

| name | type | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = (
        f"| `{one.name}{'_total' * (one.type == 'counter')}` | {one.type} | {one.documentation} |"
        for one in described()
    )
    return HEAD + "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - this is what it is for
