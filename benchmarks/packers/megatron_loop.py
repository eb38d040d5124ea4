"""The inner loop of Megatron-LM's ``tools/preprocess_data.py``, with Megatron-Core's own builder.

A line is parsed, its text encoded, an end appended, and the document added to an ``IndexedDatasetBuilder``.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import tokenizers
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

END = 50256


def main() -> None:
    file, tokenizer_file, folder = map(Path, sys.argv[1:4])
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True
    began, tokens = time.perf_counter(), 0
    builder = IndexedDatasetBuilder(str(folder / "train.bin"), dtype=np.uint16)
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            ids = [*tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids, END]
            builder.add_document(torch.tensor(ids), [len(ids)])
            tokens += len(ids)
    builder.finalize(str(folder / "train.idx"))
    print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}))


if __name__ == "__main__":
    main()
