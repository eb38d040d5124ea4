"""Prints the rows of an export as JSON, read by the format's own library: ``python -m … FORMAT FOLDER``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def mds(folder: str) -> Iterator[dict[str, Any]]:
    from streaming import StreamingDataset  # noqa: PLC0415 - one library in each process

    data = StreamingDataset(local=folder, batch_size=1, shuffle=False)
    yield from (data[number] for number in range(len(data)))


def litdata(folder: str) -> Iterator[dict[str, Any]]:
    from litdata import StreamingDataset  # noqa: PLC0415

    for row in StreamingDataset(folder, shuffle=False):
        yield {name: json.loads(value) if name.startswith("document") else value for name, value in row.items()}


def litdata_tokens(folder: str) -> Iterator[dict[str, Any]]:
    """Read with litdata's loader of tokens alone, which is told how many a row has."""
    from litdata import StreamingDataset, TokensLoader  # noqa: PLC0415

    size = json.loads((Path(folder) / "_tokenmill" / "export.json").read_bytes())["block_tokens"]
    yield from ({"tokens": row} for row in StreamingDataset(folder, item_loader=TokensLoader(size), shuffle=False))


def megatron(folder: str) -> Iterator[dict[str, Any]]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: PLC0415

    for file in sorted(Path(folder).glob("*.idx")):
        data = IndexedDataset(str(file.with_suffix("")))
        assert data.document_indices.tolist() == list(range(len(data) + 1))
        lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_bytes().splitlines()]
        yield from ({**line, "tokens": data[number]} for number, line in enumerate(lines))


def main(to: str, folder: str) -> None:
    rows = []
    for row in {"mds": mds, "litdata": litdata, "tokens": litdata_tokens, "megatron": megatron}[to](folder):
        about = row.get("document", {})
        fields = json.dumps(about["fields"]) if about.get("fields") else None
        own = None if about.get("id") is None else str(about["id"])
        rows.append({**row, "tokens": row["tokens"].tolist(), "id": own, "fields": fields})
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
