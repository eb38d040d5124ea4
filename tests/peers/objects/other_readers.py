"""Rows of a bucket's objects as Megatron-Core and OLMo-core read them: ``python -m … PREFIX CACHE``, JSON lines."""

import json
import sys

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.object_storage_utils import ObjectStorageConfig
from olmo_core.data import NumpyFSLDataset


def main() -> None:
    prefix, cache = sys.argv[1:]
    indexed = IndexedDataset(prefix, mmap=False, object_storage_config=ObjectStorageConfig(path_to_idx_cache=cache))
    print(json.dumps([indexed[number].tolist() for number in range(len(indexed))]))  # noqa: T201 - its answer
    sizes = {"sequence_length": 5, "pad_token_id": 0, "eos_token_id": 0, "vocab_size": 1 << 16, "dtype": np.uint16}
    samples = NumpyFSLDataset(f"{prefix}.bin", **sizes)
    print(json.dumps([sample["input_ids"].tolist() for sample in samples]))  # noqa: T201


if __name__ == "__main__":
    main()
