"""Mills, a sequencer and a segment worker on a real broker: what is kept is what one order of all partitions keeps."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.sequencer.judged_order import domain_settings, feed, require_one_order
from tests.service import Service
from tokenmill.app.local.broker import Broker


@pytest.mark.cases(1)
@pytest.mark.parametrize("packing", ["concat", "fit"])
def test_what_is_kept_is_what_one_order_keeps(
    broker: Broker, topic: Callable[..., str], tmp_path: Path, packing: str
) -> None:
    settings = domain_settings(broker, topic, tmp_path, packing)
    feed(settings, random.Random(packing), 300)
    with Service(settings, tmp_path) as service:
        service.mill(2)
        service.sequencer()
        service.segment()
        require_one_order(service)


@pytest.mark.needs("minutes")
def test_a_killed_sequencer_goes_on_from_its_disk(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> None:
    """Where it noted its window; from the logs where that is broken, or where a log has other messages than it read."""
    settings = domain_settings(broker, topic, tmp_path, "concat")
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        for number, breaks in enumerate([nothing, nothing, remove_slice, change_digest, nothing]):
            sequencer = service.sequencer()
            feed(settings, random.Random(number), 150)
            require_one_order(service)
            service.wait_until(lambda: bool(list(tmp_path.glob("tokenmill-window-*/note.json"))))
            assert ("the window is on the disk" in sequencer.log) == (number in {1, 2})
            sequencer.kill()
            breaks(next(tmp_path.glob("tokenmill-window-*")))
        last = service.sequencer()
        feed(settings, random.Random(9), 150)
        require_one_order(service)
        assert "the window is on the disk" in last.log  # also after a note that did not hold


def nothing(folder: Path) -> None:
    """Leave it as it is."""


def remove_slice(folder: Path) -> None:
    max(folder.glob("seen-*.bin")).unlink()


def change_digest(folder: Path) -> None:
    note = json.loads((folder / "note.json").read_bytes())
    note["digests"][-1] ^= 1
    (folder / "note.json").write_text(json.dumps(note))
