"""What a worker shows before it has counted anything."""

from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.worker_metrics import STEP_RESULTS, WORKER, mill_at_zero, steps_at_zero


def test_a_mill_shows_each_step_of_its_streams_at_zero() -> None:
    """A counter that appears with its first document has no rate for it."""
    settings = Settings(raw_topics=("at-zero",), splits={"train": 900, "dev": 100})
    streams = settings.streams()
    mill_at_zero(streams)
    steps_at_zero(streams, ("regex", "regex_2"))
    for name in ("tokenmill_step_documents_total", "tokenmill_step_text_bytes_total"):
        for split in ("train", "dev"):
            for step in ("regex", "regex_2"):
                places = [
                    {"topic": "at-zero", "split": split, "step": step, "result": result} for result in STEP_RESULTS
                ]
                assert [WORKER.get_sample_value(name, place) for place in places] == [0, 0, 0]
