"""The tiny GPT: it trains on a store, and says how in a form that the demo reads."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.mills import RECIPE
from tests.segments.chains import STREAM, fill, make_chain
from tests.segments.eras import make_eras, write_eras
from tokenmill.genesis import Genesis
from tokenmill.segments import Store, StreamInfo

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"


def test_it_trains_on_a_store_and_reports_as_json(tmp_path: Path) -> None:
    """After so many steps it ends; ids that are random cost about log(256) nats each."""
    info = StreamInfo.from_genesis(Genesis(STREAM, replace(RECIPE, block_tokens=17), (0,), 8), 8)
    store = Store.open_or_create(tmp_path)
    store.add_stream(info, None)
    chain = make_chain(info, 20)
    fill(store, info, chain, [20])
    write_eras(store, make_eras(info, {0: chain}, [{0: 20}]))

    command = [sys.executable, str(EXAMPLE), str(tmp_path), STREAM, "--json", "--cpu", "--steps", "3"]
    done = subprocess.run(
        [*command, "--batch-size", "4", "--width", "16", "--layers", "1", "--heads", "2"],
        capture_output=True,
        text=True,
        check=True,
    )

    last = json.loads(done.stdout.splitlines()[-1])
    assert last["step"] == 3
    assert 5 < last["loss"] < 6
    assert last["tokens_per_second"] > 0
    assert 0 <= last["wait_share"] < 1
