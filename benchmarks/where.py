"""Where the CPU seconds go: shares from samples, lengths from the timed runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.field import CONTENDERS, HAND_WRITTEN, OURS, Documents
from benchmarks.picture import Bar
from benchmarks.rounds import Track
from benchmarks.sampling import sampled
from benchmarks.stages import stage_of


def look(track: Track, kinds: Iterable[Documents], cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return where the CPU seconds of one worker go: shares from samples, of the CPU seconds measured without them."""
    found = []
    measured = {cell["documents"]: cell["contenders"] for cell in cells if cell["workers"] == 1}
    for documents in kinds:
        for contender in (one for one in CONTENDERS if one.name in {OURS, HAND_WRITTEN}):
            run, processes = track.watch(contender, documents, sampled)
            for samples in processes:
                stages = samples.divide(stage_of)
                scale = measured[documents.name][contender.name]["cpu_s_per_gb"][samples.role]["median"]
                seconds = {stage: scale * cpu / sum(stages.values()) for stage, cpu in stages.items()}
                waiting = samples.sync_seconds / run.topic.text_bytes * 1e9 - seconds.get("sync", 0.0)
                found.append(
                    {
                        "documents": documents.name,
                        "contender": contender.name,
                        "role": samples.role,
                        "cpu_s_per_gb": {stage: round(cpu, 3) for stage, cpu in seconds.items()},
                        "sync_waiting_s_per_gb": round(max(waiting, 0.0), 3),
                    }
                )
    return found


def bars_of(looked: Iterable[Mapping[str, Any]]) -> dict[str, list[Bar]]:
    """Return what `look` found as bars, by kind of documents."""
    bars: dict[str, list[Bar]] = {}
    for one in looked:
        role = {"mill": ", mill worker", "segment": ", segment worker"}.get(one["role"], "")
        bar = Bar(f"{one['contender']}{role}", one["cpu_s_per_gb"], one["sync_waiting_s_per_gb"])
        bars.setdefault(one["documents"], []).append(bar)
    return bars
