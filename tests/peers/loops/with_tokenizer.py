"""A tokenizer's call in `transformers`, as anybody pads and truncates with it: rows as JSON on standard output.

Run with the path of a ``tokenizer.json``, the name of its token for padding, the length of a row, and a JSON list of
texts.
"""

import json
import sys

from transformers import PreTrainedTokenizerFast

if __name__ == "__main__":
    file, padding, length, texts = sys.argv[1:]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, pad_token=padding)
    rows = tokenizer(json.loads(texts), truncation=True, padding="max_length", max_length=int(length))
    print(json.dumps({"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}))  # noqa: T201
