"""Our signatures beside those that datasketch computes, which shares no code with ours. `make test-peers` runs this."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.peers.curation.corpus import documents
from tests.peers.running import run_with
from tokenmill.app.milling.duplicates.signatures import Near, sign

pytestmark = pytest.mark.peers


def test_datasketch_recomputes_every_signature(tmp_path: Path) -> None:
    """Bit for bit, of short texts and of real ones in many scripts."""
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
