"""Our plain steps beside datatrove's filters: the same verdicts, reasons and texts. `make test-peers` runs this.

``CURATION_DOCUMENTS`` says how many real documents are compared (``make test-peers`` takes some minutes for this);
`tests.peers.curation.comparison` compares 200,000 for the record.
"""

import json
import os
from pathlib import Path

import pytest

from tests.peers.curation.comparison import Compared, compare

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Return what a comparison of some documents finds."""
    folder = tmp_path_factory.mktemp("verdicts")
    return compare(folder, documents=int(os.environ.get("CURATION_DOCUMENTS", "8000")), rounds=40, processes=2)


@pytest.mark.timeout(3600)  # spaCy reads some hundred kilobytes a second, twice, on a machine that does other things
def test_verdicts_on_real_documents_are_those_of_datatrove(compared: Compared) -> None:
    """Each that differs would be listed."""
    assert compared.documents_compared > 1000
    real = [one for one in compared.differences_of_datatrove if one["document"].startswith("real")]
    assert json.dumps(real, indent=1, ensure_ascii=False) == "[]"


def test_adversarial_texts_differ_only_where_a_word_is_cut(compared: Compared) -> None:
    """Chunks that are longer than our bound (tokenmill/stages/curation/words.py)."""
    assert compared.adversarial_compared > 500
    short = [one for one in compared.differences_of_datatrove if not one["has_long_chunk"]]
    assert json.dumps(short, indent=1, ensure_ascii=False) == "[]"


def test_most_reasons_are_met(compared: Compared) -> None:
    """A comparison of texts that all break the first rule would say little."""
    found = {reason for counts in compared.verdicts.values() for reason in counts}
    assert len(found) > 25
    assert not [reason for reason in found if reason.startswith("raises")], "datatrove fails on a text"


def test_the_record_is_of_so_many_documents() -> None:
    """The last full comparison, as it is published."""
    record = Path(__file__).parents[3] / "benchmarks" / "results" / "curation_verdicts.json"
    assert json.loads(record.read_text())["documents_compared"] >= 200_000
