"""``make bench-dedup``: which duplicates are found and how fast, beside datatrove, datasketch, rensa (`README.md`)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from benchmarks.dedup_documents import (
    KILLED,
    Made,
    Similarities,
    made_documents,
    made_similarity,
    real_documents,
    similarities,
)
from benchmarks.dedup_service import mill_of_plain
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tests.app.milling.duplicates.plain_duplicates import shingles_of
from tokenmill.app.milling.duplicates.signatures import Deduplication, Exact, Hashes, Near, row_bytes, sign
from tokenmill.app.milling.duplicates.window import Window, compile_window

DIRECTORY: Final = Path(".tokenmill/dedup")
PACKAGES: Final = Path(".venv/peers/curation")
PEERS: Final = ("datatrove", "datasketch", "rensa_full_set", "rensa_rho")
REAL: Final = 4000
"""Real documents, at most: all pairs are compared."""
MADE_FOR_ALL: Final = 8000
"""Made documents that the others get as well."""
FALSE_BELOW: Final = 0.5
"""Jaccard similarity below which a document is no duplicate."""
SIMILAR: Final = 0.8
PART: Final = 4096
"""Documents that are signed and judged at once, as a mill does."""
JUDGED: Final = 200_000
"""Signatures of a round."""

console = Console(width=120, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often speed is measured.", min=1)] = 3,
    documents: Annotated[int, typer.Option(help="Made documents.")] = 1_000_000,
    window: Annotated[int, typer.Option(help="Of the made documents, in kept ones.")] = 400_000,
    full_window: Annotated[int, typer.Option(help="In which signatures are judged.")] = 10_000_000,
    service_bytes: Annotated[int, typer.Option(help="Text of a mill's run, in bytes.")] = 150_000_000,
    service_only: Annotated[bool, typer.Option("--service-only", help="Measure a mill, and keep the rest.")] = False,
    directory: Annotated[Path, typer.Option(help="Where files go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where dedup.json goes.")] = RESULTS,
) -> None:
    """Plant, find and compare; print a table, and write `dedup.json`."""
    about = about_this_run()
    with workplace(directory):
        compile_window()
        service = {"of": about, **mill_of_plain(directory / "service", rounds, service_bytes, console)}
        of_plain = {"mill_of_plain": service.pop("mill_of_plain")}
        if service_only:
            known = json.loads((output / "dedup.json").read_text())
            write_result(output, "dedup.json", {**known, "ratios": known["ratios"] | of_plain, "service": service})
            return
        sequencer = _sequencer(rounds, full_window, directory)
        with console.status("real documents"):
            real = real_documents(REAL)
            exact = similarities(real)
        made = list(made_documents(MADE_FOR_ALL, MADE_FOR_ALL // 4))
        texts = real + [one.text for one in made]
        measured = [_round(texts, number, directory) for number in range(rounds)]
        told = measured[0]["told"]
        same = {
            "real": len(real),
            "made": len(made),
            "text_mb": round(_megabytes(texts), 1),
            "mb_per_cpu_s": {name: _spread([one["rates"][name] for one in measured]) for name in measured[0]["rates"]},
            "found": {name: _found(told[name], exact, made, both=name.startswith("rensa")) for name in told},
            **_recomputed(texts, directory),
        }
        with console.status(f"{documents:,} made documents"):
            planted = _planted(documents, window, directory)
    result = {
        **about,
        "rounds": rounds,
        "signature_mb_per_cpu_s": _spread([one["signatures"] for one in measured]),
        **sequencer,
        "ratios": _ratios(measured) | of_plain,
        "service": service,
        **planted,
        "real": _real(np.array(told["tokenmill"][: len(real)]), exact),
        "same_documents": same,
    }
    console.print_json(json.dumps(result))
    write_result(output, "dedup.json", result)


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while part := list(islice(rest, PART)):
        yield part


def _told(deduplication: Deduplication, texts: Iterable[str], directory: Path) -> npt.NDArray[np.int64]:
    """Return the number of the document that each resembles, -1 of those that are kept."""
    window, told, at = Window(deduplication, _empty(directory)), list[npt.NDArray[np.int64]](), 0
    for part in _parts(texts):
        places = np.zeros((len(part), 2), np.uint64)
        places[:, 1] = np.arange(at, at + len(part))
        verdicts = window.judge(sign(deduplication, part), places)
        told.append(np.where(verdicts.kinds > 0, verdicts.places[:, 1].astype(np.int64), -1))
        at += len(part)
    return np.concatenate(told)


def _planted(count: int, window: int, directory: Path) -> dict[str, Any]:
    """Judge made documents, and compare with what was planted."""
    made = list(made_documents(count, window))
    near, originals = Near(window=window), np.array([one.original for one in made])
    told = _told(near, (one.text for one in made), directory / "near")
    exactly = _told(Exact(window=window), (one.text for one in made), directory / "exact")
    killed, outside = (np.array(column) for column in zip(*((one.killed, one.is_outside) for one in made), strict=True))
    found = {name: (told == originals)[(killed == lacks) & ~outside] for name, lacks in KILLED.items()}
    theory = {name: near.chance(made_similarity(lacks)) for name, lacks in KILLED.items()}
    others = np.flatnonzero((told >= 0) & ((told != originals) | (killed < 0)))
    false = sum(_jaccard(made[at], made[told[at]]) < FALSE_BELOW for at in others.tolist())
    return {
        "documents": count,
        "window": window,
        "planted": {name: len(one) for name, one in found.items()},
        "exact_recall": float((exactly == originals)[(killed == 0) & ~outside].mean()),
        "near_recall": {name: round(float(one.mean()), 4) for name, one in found.items()},
        "near_recall_in_theory": {name: round(chance, 4) for name, chance in theory.items()},
        "near_recall_080": round(float(found["0.8"].mean()), 4),
        "false_below": FALSE_BELOW,
        "false_positives": false / count,
        "outside_the_window": {"planted": int(outside.sum()), "found": int((told >= 0)[outside].sum())},
    }


def _jaccard(one: Made, other: Made) -> float:
    first, second = (shingles_of(Near(), made.text) for made in (one, other))
    return len(first & second) / len(first | second)


def _real(duplicate: npt.NDArray[np.bool_], exact: Similarities) -> dict[str, Any]:
    """Compare with what theory says of real documents; it depends on those that were kept before each."""
    near = Near()
    earlier = np.tril(exact, -1).astype(float) * ~duplicate
    chances = 1 - np.prod((1 - earlier**near.rows) ** near.bands, axis=1)
    similar, unlike = earlier.max(axis=1) >= SIMILAR, earlier.max(axis=1) < FALSE_BELOW
    return {
        "documents": len(duplicate),
        "duplicates": int(duplicate.sum()),
        "similar_080": int(similar.sum()),
        "recall_080": round(float(duplicate[similar].mean()), 4),
        "recall_080_in_theory": round(float(chances[similar].mean()), 4),
        "false_positives": int((duplicate & unlike).sum()),
        "false_positives_in_theory": round(float(chances[unlike].sum()), 1),
    }


def _round(texts: Sequence[str], number: int, directory: Path) -> dict[str, Any]:
    """Return what each makes of the same documents, and its megabytes for each CPU second."""
    megabytes, near, told = _megabytes(texts), Near(), list[bool]()
    window = Window(near, _empty(directory / f"round-{number}"))
    signing = judging = 0.0
    for part in _parts(texts):
        began = process_time()
        signed = sign(near, part)
        signing += process_time() - began
        told += (window.judge(signed, np.zeros((len(part), 2), np.uint64)).kinds > 0).tolist()
        judging += process_time() - began
    rates, answers = {"tokenmill": megabytes / judging}, {"tokenmill": told}
    given, written = _given(texts, directory), directory / "answer.json"
    for name in PEERS[number % len(PEERS) :] + PEERS[: number % len(PEERS)]:
        with console.status(f"round {number + 1}: {name}"):
            _beside("benchmarks.dedup_peer", name, given, written)
        answer = json.loads(written.read_text())
        rates[name], answers[name] = megabytes / answer["seconds"], answer["duplicates"]
        rates["shingles_in_python"] = megabytes / answer["shingles"]
    return {"signatures": megabytes / signing, "rates": rates, "told": answers}


def _beside(*command: str | Path) -> None:
    """Run a module where the others' packages are, with one thread."""
    paths = os.pathsep.join([str(PACKAGES.absolute()), str(Path.cwd())])
    environment = os.environ | {"PYTHONPATH": paths, "RAYON_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    subprocess.run([sys.executable, "-m", *map(str, command)], env=environment, check=True, stdout=subprocess.DEVNULL)


def _given(texts: Sequence[str], directory: Path) -> Path:
    path = directory / "texts.jsonl"
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


def _empty(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _ratios(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = [one["rates"] for one in measured]
    return {f"near_of_{name}": _spread([one["tokenmill"] / one[name] for one in rates]) for name in PEERS}


def _found(told: Sequence[bool], exact: Similarities, made: Sequence[Made], *, both: bool) -> dict[str, Any]:
    """Return recall and precision, of answers about ``both`` documents of a pair or about the later one."""
    duplicate, real = np.array(told), (exact if both else np.tril(exact, -1)).max(axis=1)
    best = np.append(real, np.zeros(len(made)))
    killed = np.array([one.killed for one in made])
    for at in np.flatnonzero(killed >= 0).tolist():
        for place in (at, made[at].original) if both else (at,):
            best[len(real) + place] = made_similarity(made[at].killed)
    copies = duplicate[len(real) :]
    return {
        "duplicates": int(duplicate.sum()),
        "recall": {level: round(float(copies[killed == lacks].mean()), 3) for level, lacks in KILLED.items()},
        "recall_080_of_real": round(float(duplicate[: len(real)][real >= SIMILAR].mean()), 4),
        "precision": round(float((best[duplicate] >= FALSE_BELOW).mean()), 5),
    }


def _recomputed(texts: Sequence[str], directory: Path) -> dict[str, int]:
    """Return how many signatures datasketch computed again, and how many of these differ."""
    signed, written = sign(Near(), texts), directory / "bands.npy"
    with console.status("signatures by datasketch"):
        _beside("tests.peers.curation.with_datasketch", _given(texts, directory), written)
    different = (np.load(written) != signed[:, :-1]).any(axis=1)
    return {"signatures_recomputed": len(texts), "signatures_that_differ": int(different.sum())}


def _sequencer(rounds: int, size: int, directory: Path) -> dict[str, Any]:
    """Fill a window with random signatures but for an eighth; then judge more, a fifth of them seen before."""
    near, rng, before = Near(window=size), np.random.default_rng(1), _anonymous_bytes()
    window = Window(near, _empty(directory / "full"))
    kept: list[Hashes] = []

    def judge(signed: Hashes) -> None:
        for low in range(0, len(signed), PART):
            window.judge(signed[low : low + PART], np.zeros((len(signed[low : low + PART]), 2), np.uint64))

    with console.status("a full window"):
        while window.kept < size * 7 // 8:
            signed = rng.integers(1, 1 << 64, (16 * PART, near.width), np.uint64)
            judge(signed)
            kept.append(signed[: JUDGED * 16 * PART // size].copy())
        del signed
        held = _anonymous_bytes() - before - sum(one.nbytes for one in kept)
        seen, rates, cpu_rates = np.concatenate(kept[len(kept) // 4 :]), list[float](), list[float]()
        for _ in range(rounds):
            signed = rng.integers(1, 1 << 64, (JUDGED, near.width), np.uint64)
            signed[::5] = rng.choice(seen, len(signed[::5]))
            began, cpu_began = perf_counter(), process_time()
            judge(signed)
            rates.append(len(signed) / (perf_counter() - began))
            cpu_rates.append(len(signed) / (process_time() - cpu_began))
    window.sync()
    opened = [_seconds_to_open(near, directory / "full", window.kept) for _ in range(rounds)]
    return {
        "full_window": size,
        "sequencer_documents_per_s": _spread(rates),
        "sequencer_documents_per_cpu_s": _spread(cpu_rates),
        "seconds_to_go_on_from_disk": _spread(opened),
        "bytes_per_document": round(held / size, 1),
        "bytes_per_document_on_disk": row_bytes(near),
    }


def _seconds_to_open(near: Near, directory: Path, kept: int) -> float:
    began = perf_counter()
    Window(near, directory, kept)
    return perf_counter() - began


def _anonymous_bytes() -> int:
    """Return the memory of this process that no file is behind (proc(5))."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def _megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def _spread(numbers: Sequence[float]) -> dict[str, float]:
    return {name: float(f"{of(numbers):.4g}") for name, of in (("median", median), ("min", min), ("max", max))}


if __name__ == "__main__":
    typer.run(main)
