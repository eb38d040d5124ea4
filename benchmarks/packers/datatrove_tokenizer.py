"""datatrove's reader of JSON lines and its ``DocumentTokenizer``, without shuffling: as fast as it can be."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from loguru import logger


def main() -> None:
    file, tokenizer_file, folder = map(Path, sys.argv[1:4])
    logger.remove()
    reader: Any = JsonlReader(str(file.parent), glob_pattern=file.name)
    step: Any = DocumentTokenizer(
        str(folder), str(tokenizer_file), eos_token="<|endoftext|>", shuffle_documents=False, save_filename="train"
    )
    step.tokenizer.encode("loads it")
    began = time.perf_counter()
    step.run(reader.run(), 0, 1)
    seconds = time.perf_counter() - began
    tokens = sum(path.stat().st_size for path in folder.glob("*.ds")) // 2
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()
