"""A rank that trains from a bucket: writes each step down, with the state after it, and goes on where its file ends."""

import json
import sys
import time
from pathlib import Path

from tokenmill.bucket import cache
from tokenmill.consumers import Batches

STREAM = "raw-text.train"


def main(address: str, folder: str, place: str, told: str, stream: str = STREAM) -> None:
    """Read the stream to its end; a step takes ``step_seconds``, an option beside those of `Batches`."""
    cache.LOOK_SECONDS = 0.05  # type: ignore[misc]
    file = Path(place)
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    options = json.loads(told)
    seconds = options.pop("step_seconds", 0.01)
    batches = Batches(address, stream, cache=folder, **options)
    if whole:
        batches.load_state_dict(json.loads(whole.splitlines()[-1])[1])
        file.write_text(whole + "\n")  # without a line that a kill cut off
    with file.open("a") as out:
        for batch in batches:
            out.write(json.dumps([batch.x.tolist(), batch.state]) + "\n")
            out.flush()
            time.sleep(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
