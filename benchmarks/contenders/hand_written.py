"""A contender: the loop that one writes by hand. aiokafka in, a tokenizer, aiokafka out, and a file to memory-map.

It has what is easy to have, done well: whole fetches, one call of the tokenizer for all their documents, numpy instead
of loops over tokens, batched sends, a thread so that the client's loop goes on meanwhile. It has no answer to a crash
between two of its lines: blocks come twice or never, and nobody knows whose tokens they are.

Runs as ``python hand_written.py --help``; needs nothing of TokenMill. Says ``ready`` when it has partitions.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, BinaryIO

import gigatoken
import numpy as np
import numpy.typing as npt
import orjson
import tokenizers
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition

BLOCK = 1025  # tokens
MESSAGE = 500  # blocks in a message: just under 1 MiB, the most that aiokafka and Kafka take if nobody says otherwise
SHARDS, TRAIN = 1000, 980

Ids = npt.NDArray[np.uint32]
Encode = Callable[[list[str]], tuple[Ids, npt.NDArray[np.int64]]]
"""Returns the ids of all texts, one after the other, and where each text begins and ends."""
Tokens = npt.NDArray[np.uint16]


def with_gigatoken(file: Path) -> Encode:
    content = json.loads(file.read_bytes())
    # It would make <|endoftext|> in a text the real thing.
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    tokenizer = gigatoken.Tokenizer.from_json(json.dumps(content))

    def encode(texts: list[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        layout = tokenizer.encode_batch(texts, parallel=False).layout
        return layout.content.data, layout.offsets.data

    return encode


def with_tokenizers(file: Path) -> Encode:
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True

    def encode(texts: list[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])

    return encode


def with_tokenizers_1(file: Path) -> Encode:
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))  # the lock has 0.23, and its types

    def encode(texts: list[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False, encode_special_tokens=True)
        ids = [encoding.ids_array for encoding in encodings]
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])

    return encode


ENGINES = {"gigatoken": with_gigatoken, "tokenizers": with_tokenizers, "tokenizers-1": with_tokenizers_1}


def split_of(key: str) -> str:
    shard = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big") % SHARDS
    return "train" if shard < TRAIN else "validation"


class Loop:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.encode = ENGINES[arguments.engine](arguments.tokenizer)
        self.open: dict[tuple[str, int], Tokens] = {}
        self.files: dict[str, BinaryIO] = {}

    async def run(self) -> None:
        arguments = self.arguments
        consumer = AIOKafkaConsumer(
            bootstrap_servers=arguments.bootstrap_servers,
            group_id=arguments.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        producer = AIOKafkaProducer(bootstrap_servers=arguments.bootstrap_servers, acks="all")
        consumer.subscribe([arguments.raw_topic], listener=Ready())
        async with consumer, producer:
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                    milled = await asyncio.to_thread(self.mill, records, partition.partition)
                    sent = [
                        await producer.send(f"{arguments.token_topic}-{split}", message, partition=partition.partition)
                        for split, blocks in milled.items()
                        for message in cut(blocks)
                    ]
                    await asyncio.gather(*sent)
                    for split, blocks in milled.items():
                        self.append(split, blocks)
                    await consumer.commit({partition: records[-1].offset + 1})

    def mill(self, records: Sequence[ConsumerRecord], partition: int) -> dict[str, Tokens]:
        texts: dict[str, list[str]] = {"train": [], "validation": []}
        for record in records:
            document = orjson.loads(record.value)
            texts[split_of(document["id"])].append(document["text"])
        return {split: self.pack(split, partition, part) for split, part in texts.items() if part}

    def pack(self, split: str, partition: int, texts: list[str]) -> Tokens:
        ids, offsets = self.encode(texts)
        tokens = np.insert(ids.astype(np.uint16), offsets[1:], self.arguments.end_of_document)
        tokens = np.concatenate([self.open.get((split, partition), tokens[:0]), tokens])
        whole = len(tokens) // BLOCK * BLOCK
        self.open[split, partition] = tokens[whole:].copy()
        return tokens[:whole].reshape(-1, BLOCK)

    def append(self, split: str, blocks: Tokens) -> None:
        if split not in self.files:
            path = self.arguments.directory / f"{split}-{os.getpid()}.bin"  # for np.memmap(path, np.uint16)
            self.files[split] = path.open("wb", buffering=0)
        self.files[split].write(blocks.data)


def cut(blocks: Tokens) -> Iterable[bytes]:
    return (blocks[first : first + MESSAGE].tobytes() for first in range(0, len(blocks), MESSAGE))


class Ready(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        if assigned:
            print("ready", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokenize a topic by hand.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--raw-topic", required=True)
    parser.add_argument("--token-topic", required=True, help="blocks go to <this>-train and <this>-validation")
    parser.add_argument("--group", required=True)
    parser.add_argument("--tokenizer", required=True, type=Path, help="a tokenizer.json")
    parser.add_argument("--end-of-document", required=True, type=int)
    parser.add_argument("--engine", default="gigatoken", choices=list(ENGINES))
    parser.add_argument("--directory", required=True, type=Path, help="where the files go")
    asyncio.run(Loop(parser.parse_args()).run())


if __name__ == "__main__":
    main()
