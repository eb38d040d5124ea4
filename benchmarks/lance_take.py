"""``python -m benchmarks.lance_take``: random rows of an exported Lance data set, and of what Lance itself writes."""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import lance
import numpy as np

from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tests.store.chains import STREAM, fill, make_info, make_store
from tokenmill.app.tools.export import export
from tokenmill.reading import Blocks
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import Piece, encode_entry

DIRECTORY: Final = Path(".tokenmill/lance-take")
SEGMENT_BLOCKS: Final = 16_384
SEGMENTS: Final = 4
BLOCK_TOKENS: Final = 1025
ROUNDS: Final = 150
ROWS: Final = (1, 32, 256)


def main() -> None:
    """Measure `take` of data sets with the same rows, in turns; print and write the result.

    Two are of Lance's own `write_dataset`: appended to segment by segment, as a stream grows, and written at once.
    """
    result: dict[str, Any] = about_this_run()
    with workplace(DIRECTORY):
        info = make_info(block_tokens=BLOCK_TOKENS, segment_blocks=SEGMENT_BLOCKS)
        store = make_store(DIRECTORY / "store", info)
        count = SEGMENT_BLOCKS * SEGMENTS
        tokens = np.random.default_rng(0).integers(0, 50_000, count * BLOCK_TOKENS, dtype=np.uint16).tobytes()
        entries = [encode_entry([Piece(0, number, 0, b"")]) for number in range(count)]
        chain = Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, 0), tokens, entries))
        fill(store, info, chain, range(1024, count + 1, 1024))
        export(store.path, STREAM, DIRECTORY / "exported", to="lance", what="blocks")
        exported = lance.dataset(str(DIRECTORY / "exported"))
        table = exported.to_table()
        for number in range(SEGMENTS):
            part = table.slice(number * SEGMENT_BLOCKS, SEGMENT_BLOCKS)
            mode = "append" if number else "create"
            appended = lance.write_dataset(part, str(DIRECTORY / "appended"), mode=mode)
        at_once = lance.write_dataset(table, str(DIRECTORY / "at-once"))
        result["take"] = measured({"exported": exported, "appended": appended, "at_once": at_once}, count)
    for rows, times in result["take"].items():
        print(f"{rows} rows: {times}")
    write_result(RESULTS, "lance_take.json", result)


def measured(data_sets: Mapping[str, Any], count: int) -> dict[str, dict[str, float]]:
    """Return the median microseconds of a `take` of so many rows, and the speed of ours as a share of the others'."""
    rng = np.random.default_rng(1)
    found: dict[str, dict[str, float]] = {}
    for rows in ROWS:
        seconds: dict[str, list[float]] = {name: [] for name in data_sets}
        for _ in range(ROUNDS):
            indices = rng.integers(0, count, rows).tolist()
            for name in rng.permutation(list(data_sets)).tolist():
                began = time.perf_counter()
                data_sets[name].take(indices, columns=["tokens"])
                seconds[name].append(time.perf_counter() - began)
        medians = {name: median(values) for name, values in seconds.items()}
        ratios = {f"exported_of_{name}": value / medians["exported"] for name, value in medians.items()}
        times = {name: 1e6 * value for name, value in medians.items()}
        found[str(rows)] = {name: round(value, 3) for name, value in (times | ratios).items()}
    return found


if __name__ == "__main__":
    main()
