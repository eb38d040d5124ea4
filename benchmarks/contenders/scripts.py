"""The contenders that are scripts of their own: one process a worker, which does everything."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import orjson

from benchmarks.cluster import delete_topics, make_topics
from benchmarks.contenders import Running, Task
from benchmarks.measuring import Watched
from tokenmill.app.settings import Settings

SPLITS: Final = ("train", "validation")
TOKEN_BYTES: Final = 2


@contextmanager
def start(task: Task, *, script: str, options: Sequence[str] = (), path: Path | None = None) -> Iterator[Running]:
    """Start a script of this folder for each worker; ``path``: a folder with packages that come before others."""
    environment = {} if path is None else {"PYTHONPATH": str(path)}
    settings = Settings(bootstrap_servers=task.bootstrap_servers)
    topic = f"plain-{task.name}"
    topics = [f"{topic}-{split}" for split in SPLITS]
    make_topics(settings, topics)
    command = [sys.executable, str(Path(__file__).with_name(script)), "--bootstrap-servers", task.bootstrap_servers]
    command += ["--raw-topic", task.raw_topic, "--token-topic", topic, "--group", task.name]
    command += ["--tokenizer", str(task.tokenizer), "--end-of-document", str(end_of_document(task.tokenizer))]
    command += ["--directory", str(task.directory), *options]
    with ExitStack() as stack:
        yield Running(
            [
                stack.enter_context(Watched("worker", command, log, mark=b"ready", environment=environment))
                for log in (task.directory / f"worker-{n}.log" for n in range(task.workers))
            ],
            lambda: sum(file.stat().st_size for file in task.directory.glob("*.bin")) // TOKEN_BYTES,
        )
    delete_topics(settings, topics)


def end_of_document(tokenizer: Path) -> int:
    """Return the id of GPT-2's ``<|endoftext|>``."""
    added = orjson.loads(tokenizer.read_bytes())["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == "<|endoftext|>")
