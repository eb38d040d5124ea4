"""Figures in docs/why_not.md, docs/packing.md, docs/scaling.md and docs/buckets.md are those of benchmarks/results."""

import json
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from docs.generators.site import ROOT
from tokenmill.app.settings import load_settings

PAGES: Final = {name: (ROOT / f"docs/{name}.md").read_text() for name in ("why_not", "packing", "scaling", "buckets")}


def result(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


INGEST: Final = {
    name: {figure: found["median"] for figure, found in of.items() if figure.startswith(("text", "peak"))}
    for name, of in result("ingest")["cells"][0]["contenders"].items()
}
PACK: Final = {name: found["median"] for name, found in result("pack")["text_mb_per_s"].items()}
CURATION: Final = result("curation")
LOADER: Final = {
    name: found["median"] / 1e6 for name, found in result("loader")["speeds"][0]["tokens_per_second"].items()
}
MIXTURE: Final = result("mixture")["loaders"]
SECONDS: Final = result("latency")["seconds"]
SHAPES: Final = result("shapes")
SCALING: Final = result("scaling")
BUCKET: Final = result("bucket")
DIVIDED: Final = [each for kind in ("eras", "partitions", "streams") for each in list(SCALING[kind].values())[:2]]
"""What a loop cost over few parts and over many."""
HAND_WRITTEN: Final = "hand-written, gigatoken"
WRITTEN: Final[dict[str, list[tuple[str, Any]]]] = {
    "why_not": [
        ("| {:.1f}, with checksums", INGEST["TokenMill"]["text_mb_per_cpu_s"]),
        ("without these: {:.1f};", INGEST[HAND_WRITTEN]["text_mb_per_cpu_s"]),
        ("with `tokenizers`: {:.1f}, with", INGEST["hand-written, tokenizers"]["text_mb_per_cpu_s"]),
        ("candidate {:.1f}; stock", INGEST["hand-written, tokenizers 1"]["text_mb_per_cpu_s"]),
        ("stock Faust: {:.1f} |", INGEST["stock Faust, gigatoken"]["text_mb_per_cpu_s"]),
        ("memory in MB | {:.0f} |", INGEST["TokenMill"]["peak_rss_mb"]),
        ("| hand-written: {:.0f} |", INGEST[HAND_WRITTEN]["peak_rss_mb"]),
        ("seconds, median | {:.1f};", median(SECONDS["low load"])),
        ("SIGKILL {:.1f} |", median(SECONDS["after SIGKILL"])),
        ("one core, MB/s | {:.1f} |", PACK["TokenMill, one core"]),
        ("bare loop, same engine: {:.1f};", PACK["hand-written, gigatoken, one thread"]),
        ("nanoGPT's script: {:.1f};", PACK["nanogpt_script"]),
        ("datatrove: {:.1f};", PACK["datatrove_tokenizer"]),
        ("Megatron's loop: {:.1f} |", PACK["megatron_loop"]),
        (
            "at about {:.1f} of the speed of a bare loop",
            result("pack")["ratios"]["pack_of_hand_written_on_one_core"]["median"],
        ),
        ("MB a CPU second | {:.1f} |", CURATION["fineweb_mb_per_cpu_s"]["median"]),
        ("datatrove: {:.2f}, with", CURATION["datatrove_mb_per_cpu_s"]["median"]),
        ("all but {} of 204,000", CURATION["differences_of_datatrove"]),
        ("of {:,} documents |", CURATION["documents_compared"]),
        ("one core | {:,.0f}, each checked", LOADER["tokenmill"]),
        ("litData: {:.0f}; datasets", LOADER["litdata"]),
        ("datasets: {:.0f}; lance", LOADER["datasets"]),
        ("lance: {:.0f}; MosaicML Streaming:", LOADER["lance"]),
        ("MosaicML Streaming: {:.0f} |\n| mixture", LOADER["mosaicml-streaming"]),
        ("12,800 | {:.2f} |", MIXTURE["tokenmill"]["off_by_samples"]["most"]),
        ("| litData: {:.0f}; datasets: 56", MIXTURE["litdata"]["off_by_samples"]["most"]),
        ("datasets: {:.0f}; MosaicML", MIXTURE["datasets"]["off_by_samples"]["most"]),
        ("MosaicML Streaming: {:.0f} |\n| two", MIXTURE["mosaicml-streaming"]["off_by_samples"]["most"]),
        ("{} of 6,400 read again", MIXTURE["mosaicml-streaming"]["resumed_with_two_ranks"]["read_again"]),
    ],
    "scaling": [
        ("| first batch, ms | {} |", " | ".join(f"{each['first_batch_ms']:.0f}" for each in DIVIDED)),
        ("of a resumed run, ms | {} |", " | ".join(f"{each['resumed_batch_ms']:.0f}" for each in DIVIDED)),
        ("a CPU second | {} |", " | ".join(f"{each['tokens_per_cpu_second'] / 1e6:.0f}" for each in DIVIDED)),
        ("each of {:,} samples once", SCALING["ranks"]["samples_each_once"]),
        ("{:,} ranks, each a process", SCALING["ranks"]["ranks"]),
    ],
    "buckets": [
        ("{:.0f} million tokens a second", BUCKET["tokens_per_second"]["tokenmill"] / 1e6),
        ("{:.1f} of what litData", BUCKET["ratios"]["to_litdata"]),
        ("waits {:.1f} % of its time", 100 * BUCKET["wait_ratio"]),
    ],
    "packing": [
        ("{:,} files", SHAPES["fit_documents"]),
        ("`concat` | {:.1f} %", SHAPES["concat_cut_percent_2049"]),
        ("| {:.1f} % |\n| documents in several pieces, `fit`", SHAPES["concat_cut_percent_8193"]),
        ("longer than a block | {:.1f} %", SHAPES["fit_cut_percent_2049"]),
        ("53.0 % | {:.1f} %", SHAPES["fit_cut_percent_8193"]),
        ("all the same, `fit` | {0} | {0} |", SHAPES["fit_cut_that_fits"]),
        ("are text, `fit` | {:.3f} %", SHAPES["fit_fill_2049"]),
        ("99.863 % | {:.3f} %", SHAPES["fit_fill_8193"]),
        ("beforehand | {:.3f} %", SHAPES["trl_bfd_split_fill_2049"]),
        ("99.999 % | {:.3f} %", SHAPES["trl_bfd_split_fill_8193"]),
        ("beside `concat` | {:.2f} |", SHAPES["ratios"]["fit_of_concat_2049"]),
        ("1.01 | {:.2f} |", SHAPES["ratios"]["fit_of_concat_8193"]),
    ],
}
"""Of each page: words with a figure in them, and what was measured."""


@pytest.mark.parametrize("name", WRITTEN)
def test_figures_are_those_that_were_measured(name: str) -> None:
    missing = [words.format(figure) for words, figure in WRITTEN[name] if words.format(figure) not in PAGES[name]]
    assert missing == []


def test_a_mixture_goes_on_where_the_page_says() -> None:
    resumed = {name: loader.get("resumed_with_two_ranks", {}) for name, loader in MIXTURE.items()}
    assert resumed["tokenmill"]["same_order"]
    assert not resumed["mosaicml-streaming"]["same_order"]
    assert {name for name, found in resumed.items() if "refused" in found} == {"litdata", "datasets"}


def test_the_packing_page_has_settings_that_load(tmp_path: Path) -> None:
    written = PAGES["packing"].split("```toml\n")[1].split("```")[0]
    (tmp_path / "tokenmill.toml").write_text(written)
    assert load_settings(config=tmp_path / "tokenmill.toml").packing == "fit"
