"""From sources (`app.sources`) into a raw topic, exactly once: `produce` sends what was found.

- `producing` is the run, `sending` the way to Kafka and what came of it; `dask_lanes` are runs on other hosts.
- Where a run continues, `producing` decides by its notes and marks (`run_notes`), and how sources have changed since.
"""
