"""Our plain steps beside datatrove's filters, and our signatures beside datasketch's. `make test-peers` runs this.

``CURATION_DOCUMENTS`` says how many real documents are compared, 200,000 if nothing else is said, which takes two
cores half an hour. `tests.peers.curation.comparison` writes the record that is published.
"""

import json
import os
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.peers.curation.comparison import Compared, compare
from tests.peers.curation.corpus import documents
from tests.peers.running import run_with
from tokenmill.app.milling.duplicates.signatures import Near, sign

pytestmark = pytest.mark.peers

MOST_DIFFERENCES: Final = 2e-5
"""Share of real documents: two of 204,000 did, both lists of code points without a space."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("verdicts")
    return compare(folder, documents=int(os.environ.get("CURATION_DOCUMENTS", "200000")), rounds=40, processes=2)


@pytest.mark.timeout(4 * 3600)  # spaCy reads some hundred kilobytes a second, twice
def test_verdicts_on_real_documents_are_those_of_datatrove(compared: Compared) -> None:
    """Each that differs would be listed. Only a word that is cut may differ, and hardly ever does."""
    assert compared.documents_compared > 1000
    real = [one for one in compared.differences_of_datatrove if one["document"].startswith("real")]
    assert json.dumps([one for one in real if not one["has_long_chunk"]], indent=1, ensure_ascii=False) == "[]"
    assert len(real) <= compared.documents_compared * MOST_DIFFERENCES


def test_adversarial_texts_differ_only_where_a_word_is_cut(compared: Compared) -> None:
    """Chunks that are longer than our bound (app/milling/curation/words.py)."""
    assert compared.adversarial_compared > 500
    short = [one for one in compared.differences_of_datatrove if not one["has_long_chunk"]]
    assert json.dumps(short, indent=1, ensure_ascii=False) == "[]"


def test_most_reasons_are_met(compared: Compared) -> None:
    """A comparison of texts that all break the first rule would say little."""
    found = {reason for counts in compared.verdicts.values() for reason in counts}
    assert len(found) > 25
    assert not [reason for reason in found if reason.startswith("raises")], "datatrove fails on a text"


def test_the_record_is_of_so_many_documents() -> None:
    record = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "curation_verdicts.json").read_text())
    assert record["documents_compared"] >= 200_000
    assert all(one["has_long_chunk"] for one in record["differences_of_datatrove"])


def test_datasketch_recomputes_every_signature(tmp_path: Path) -> None:
    texts = [f"one text of many words, with number {number} in it" for number in range(20)]
    texts += islice(documents(3000), 3000)
    signed = sign(Near(), texts)
    has_shingles = (signed[:, :-1] != 0).all(axis=1)
    chosen = [text for text, good in zip(texts, has_shingles.tolist(), strict=True) if good]
    (tmp_path / "texts").write_text("".join(json.dumps(text) + "\n" for text in chosen))

    call = ["-m", "tests.peers.curation.with_datasketch", tmp_path / "texts", tmp_path / "bands.npy"]
    run_with("curation", *call)

    assert len(chosen) > 1000
    assert np.array_equal(np.load(tmp_path / "bands.npy"), signed[has_shingles, :-1])
