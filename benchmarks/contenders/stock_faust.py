"""A contender: Faust as its documentation has it, an agent that takes one event at a time.

The same fast tokenizer, split, blocks and file as in `hand_written.py`. Each block is sent when it is full, and not
waited for. Runs as ``python stock_faust.py --help``; says ``ready`` when it has partitions.
"""

import argparse
import json
import os
import sys
from hashlib import md5
from pathlib import Path
from typing import Any, BinaryIO

import faust
import gigatoken
import numpy as np
import numpy.typing as npt
import orjson

BLOCK = 1025  # tokens
SHARDS, TRAIN = 1000, 980


def split_of(key: str) -> str:
    shard = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big") % SHARDS
    return "train" if shard < TRAIN else "validation"


class Packer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        content = json.loads(arguments.tokenizer.read_bytes())
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
        self.tokenizer = gigatoken.Tokenizer.from_json(json.dumps(content))
        self.separator = np.array([arguments.end_of_document], np.uint16)
        self.directory: Path = arguments.directory
        self.open: dict[tuple[str, int], list[npt.NDArray[np.uint16]]] = {}
        self.lengths: dict[tuple[str, int], int] = {}
        self.files: dict[str, BinaryIO] = {}

    def add(self, split: str, partition: int, text: str) -> list[bytes]:
        key = split, partition
        ids = self.tokenizer.encode(text).astype(np.uint16)
        parts = self.open.setdefault(key, [])
        parts += [ids, self.separator]
        self.lengths[key] = self.lengths.get(key, 0) + len(ids) + 1
        if self.lengths[key] < BLOCK:
            return []
        tokens = np.concatenate(parts)
        whole = len(tokens) // BLOCK * BLOCK
        self.open[key] = [tokens[whole:].copy()]
        self.lengths[key] = len(tokens) - whole
        blocks = tokens[:whole].reshape(-1, BLOCK)
        if split not in self.files:
            self.files[split] = (self.directory / f"{split}-{os.getpid()}.bin").open("wb", buffering=0)
        self.files[split].write(blocks.data)
        return [block.tobytes() for block in blocks]


def make_app(arguments: argparse.Namespace) -> faust.App:
    packer = Packer(arguments)
    app = faust.App(
        arguments.group,
        broker=f"aiokafka://{arguments.bootstrap_servers}",
        store="memory://",
        datadir=packer.directory / "faust",  # its default is where one stands
        web_enabled=False,
        topic_allow_declare=False,  # the topics are there
        topic_disable_leader=True,
    )
    source = app.topic(arguments.raw_topic, value_serializer="raw", value_type=bytes)
    sinks = {
        split: app.topic(f"{arguments.token_topic}-{split}", value_serializer="raw")
        for split in ("train", "validation")
    }

    @app.agent(source)
    async def mill(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            document = orjson.loads(event.value)
            split = split_of(document["id"])
            partition = event.message.partition
            for block in packer.add(split, partition, document["text"]):
                await sinks[split].send(value=block, partition=partition)

    @app.on_rebalance_complete.connect
    async def ready(*_: Any, **__: Any) -> None:
        if app.consumer.assignment():
            print("ready", flush=True)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokenize a topic, one event at a time.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--raw-topic", required=True)
    parser.add_argument("--token-topic", required=True, help="blocks go to <this>-train and <this>-validation")
    parser.add_argument("--group", required=True)
    parser.add_argument("--tokenizer", required=True, type=Path, help="a tokenizer.json")
    parser.add_argument("--end-of-document", required=True, type=int)
    parser.add_argument("--directory", required=True, type=Path, help="where the files go")
    app = make_app(parser.parse_args())
    sys.argv = ["faust", "worker"]  # Faust reads it as well
    faust.Worker(app, loglevel="warning").execute_from_commandline()


if __name__ == "__main__":
    main()
