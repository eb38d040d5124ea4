"""How many rows TRL makes of documents: ``python -m benchmarks.shapes_peer LENGTHS TOKENS``, where TRL is installed.

LENGTHS is a JSON list of the documents' tokens. The whole set is packed at once, with the strategy ``bfd_split``: best
fit decreasing, and what is longer than a row is cut. Prints the number of rows.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset
from trl.data_utils import pack_dataset


def main() -> None:
    """Pack documents that hold nothing but their number of tokens."""
    lengths = json.loads(Path(sys.argv[1]).read_text())
    bounds = pa.array(np.append(0, np.cumsum(lengths)), pa.int64())
    tokens = pa.LargeListArray.from_arrays(bounds, pa.array(np.zeros(sum(lengths), np.int32)))
    documents = Dataset(pa.table({"input_ids": tokens}))
    packed = pack_dataset(
        documents, int(sys.argv[2]), "bfd_split", {"batch_size": len(lengths), "keep_in_memory": True}
    )
    print(len(packed))


if __name__ == "__main__":
    main()
