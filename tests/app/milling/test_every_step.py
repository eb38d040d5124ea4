"""Recipes in which every step of the registry stands: the mill, its kernels included, and the reference agree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every_step import EXTRAS, LISTED_DOMAIN, every_step, record_of, text_of
from tests.mills import RAW, RECIPE, Source, mill_as_reference
from tests.strategies import feed_sizes, message_bytes, values
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.steps.pipeline import STEPS, read_pipeline
from tokenmill.app.milling.tokenizers import REFERENCE
from tokenmill.documents import FLUSH_HEADER, Record

for library in ("spacy", "numba", "ftfy", "re2", "fasttext"):
    pytest.importorskip(library)

URLS = ("http://good.example/page", f"http://www.{LISTED_DOMAIN}/", "http://good.example/casino-royal", "", "http://[")


@cache
def opened(fields: tuple[str, ...] = ("url", "language")) -> tuple[Source, Source]:
    """Return the source with kernels, and the one whose steps are the references alone."""
    with TemporaryDirectory() as folder:
        entries, lists = read_pipeline(every_step(Path(folder)))
    sizes: dict[str, Any] = {"max_text_bytes": 4000, "max_fields_bytes": 70, "shards": 3, "block_tokens": 64}
    recipe = replace(RECIPE, pipeline=entries, metadata_fields=fields, splits=(("train", 2), ("dev", 1)), **sizes)
    recipes = tuple(replace(recipe, split=name) for name, _ in recipe.splits)
    fast = open_stages(recipe, RAW, lists=lists)
    assert not fast.steps_refused
    return Source(fast, recipes), Source(open_stages(recipe, RAW, REFERENCE, lists=lists), recipes)


def in_order(source: Source, order: Sequence[int]) -> Source:
    """Return the source with its listed steps in another order; those that every recipe has stay behind them."""
    steps = source.stages.steps
    turned = [*(steps[at] for at in order), *steps[len(order) :]]
    return replace(source, stages=replace(source.stages, steps=turned))


curated = st.builds(
    record_of,
    st.integers(0, 999),
    st.builds(text_of, st.lists(st.integers(0, 999), min_size=6, max_size=14), st.sampled_from(EXTRAS)),
    st.sampled_from([URLS[0]] * 6 + list(URLS)),
)
bodies = st.tuples(curated, st.just(())) | st.tuples(values, st.just(())) | st.just((None, (FLUSH_HEADER,)))
curated_records = st.lists(st.one_of(st.tuples(curated, st.just(())), bodies), max_size=16).map(
    lambda drawn: [Record(2 * at, at, None, value, headers) for at, (value, headers) in enumerate(drawn)]
)


@pytest.mark.slow
@given(order=st.permutations(range(len(STEPS))), records=curated_records, sizes=feed_sizes, size=message_bytes)
def test_mill_and_reference_agree_with_every_step_in_any_order(
    *, order: Sequence[int], records: list[Record], sizes: list[int], size: int
) -> None:
    fast, plain = (in_order(source, order) for source in opened())
    mill_as_reference(fast, records, sizes, message_bytes=size, plain=plain)


@pytest.mark.slow
def test_every_step_has_something_to_decide() -> None:
    """Most steps filter or change texts of those that are drawn, and each has documents to look at."""
    assert {step.name for step in opened()[0].stages.steps} >= STEPS.keys()
    records = [
        Record(at, at, None, record_of(at, text_of([at * n for n in range(3, 12)], extra), url))
        for at, (extra, url) in enumerate((extra, url) for extra in EXTRAS for url in URLS)
    ]
    source, _ = opened()
    mill = source.mill()
    mill.feed(records)
    filtered: Counter[str] = Counter()
    for chain in mill.chains.values():
        filtered += Counter({name.partition(".")[0]: n for name, n in chain.totals.filtered.items()})
        assert all(step.taken.documents for step in chain.totals.figures.steps)
        assert chain.totals.tokens
    assert filtered.keys() >= {"url", "c4_quality", "words", "regex", "sample", "decontaminate"}
