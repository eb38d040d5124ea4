"""Compares our plain steps with datatrove's filters, document by document, in processes of their own.

``python -m tests.peers.curation.comparison FOLDER --documents 200000 --processes 2 --record FILE`` writes how many
documents were compared, and every difference. What is in the folder already is not computed again, so a run that was
stopped goes on.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests.peers.curation import adversarial, corpus
from tests.peers.curation.variants import VARIANTS
from tokenmill.app.milling.curation.words import CHUNK_CHARACTERS

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ROOT / ".venv" / "peers" / "curation"
SHARD: Final = 2_000
_SHOWN: Final = 400


@dataclass
class Compared:
    documents_compared: int = 0
    adversarial_compared: int = 0
    characters_compared: int = 0
    differences_of_datatrove: list[dict[str, Any]] = field(default_factory=list)
    """Of each difference: number and beginning of the document, step, parameters, both answers."""
    verdicts: dict[str, dict[str, int]] = field(default_factory=dict)
    """How often datatrove gave each reason, or kept a document, by step and parameters."""


def compare(folder: Path, *, documents: int, rounds: int, processes: int) -> Compared:
    """Return what a comparison of so many real documents, and ``rounds`` adversarial ones of each kind, finds."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = sorted(folder.glob("*.documents")) or _write_shards(folder, documents, rounds)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(_answer, (shards[lane::processes] for lane in range(processes))))
    compared, verdicts = Compared(), [Counter[str]() for _ in VARIANTS]
    for shard in shards:
        _add(compared, verdicts, shard)
    for variant, counts in zip(VARIANTS, verdicts, strict=True):
        compared.verdicts[f"{variant.step} {json.dumps(variant.parameters)}"] = dict(counts.most_common())
    return compared


def _write_shards(folder: Path, documents: int, rounds: int) -> list[Path]:
    nasty = (text for _, text in adversarial.texts(rounds, 400))
    written: list[Path] = []
    for name, texts in (("real", corpus.documents(documents)), ("adversarial", nasty)):
        number = 0
        while shard := list(islice(texts, SHARD)):
            path = folder / f"{name}-{number // SHARD:04}.documents.new"
            path.write_text("".join(json.dumps([number + at, text]) + "\n" for at, text in enumerate(shard)))
            number += len(shard)
            written.append(path)
    return sorted(path.rename(path.with_suffix("")) for path in written)


def _answer(shards: list[Path]) -> None:
    """Write both answers for these shards, where they are not there yet, each in one process."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    programs = {
        "with_datatrove": ([sys.executable, "-S"], [PACKAGES, ROOT]),  # -S: without the project's packages
        "with_tokenmill": ([sys.executable], [ROOT]),
    }
    for program, (python, packages) in programs.items():
        environment = own | {"PYTHONPATH": os.pathsep.join(map(str, packages))}
        command = [*python, "-m", f"tests.peers.curation.{program}", *map(str, shards)]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)


def _add(compared: Compared, verdicts: list[Counter[str]], shard: Path) -> None:
    answers = (_lines(shard.with_suffix(f".with_{program}")) for program in ("datatrove", "tokenmill"))
    for (number, text), theirs, ours in zip(_lines(shard), *answers, strict=True):
        if shard.name.startswith("real"):
            compared.documents_compared += 1
        else:
            compared.adversarial_compared += 1
        compared.characters_compared += len(text)
        for at, answer in theirs[1].items():
            variant = VARIANTS[int(at)]
            verdicts[int(at)][answer if isinstance(answer, str) else "kept"] += 1
            if ours[1][at] != answer:
                compared.differences_of_datatrove.append(
                    {
                        "document": f"{shard.stem} {number}: {text[:_SHOWN]}",
                        "has_long_chunk": any(len(chunk) > CHUNK_CHARACTERS for chunk in text.split()),
                        "step": variant.step,
                        "parameters": variant.parameters,
                        "datatrove": _shown(answer),
                        "tokenmill": _shown(ours[1][at]),
                    }
                )


def _lines(path: Path) -> Iterable[Any]:
    with path.open() as file:
        yield from map(json.loads, file)


def _shown(answer: str | list[str]) -> str:
    return answer if isinstance(answer, str) else f"keeps {answer[0][:_SHOWN]!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    found = compare(asked.folder, documents=asked.documents, rounds=asked.rounds, processes=asked.processes)
    if asked.record:
        asked.record.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(
        f"{found.documents_compared} real and {found.adversarial_compared} adversarial documents, "
        f"{len(found.differences_of_datatrove)} differences\n"
    )


if __name__ == "__main__":
    main()
