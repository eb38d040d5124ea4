"""``tokenmill serve --upload-to``: the whole service as a process, whose store goes into a bucket while it grows."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.app.commands import invoke
from tests.conftest import TopicFactory
from tests.faults.serving import Serving
from tests.service import Raw, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.bucket.objects import Bucket, HeadLog, stream_of
from tokenmill.errors import BucketError, InputError

TEXTS = [Raw(b"a document of some sixty bytes, and a number behind it: %d" % number) for number in range(120)]


@pytest.mark.needs("minutes")
@pytest.mark.slow
def test_a_service_brings_its_store_into_a_bucket(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    settings = service_settings(broker, topic(1), tmp_path, splits={"all": 1000}, era_blocks=16)
    (stream,), share = settings.streams(), tmp_path / "share"
    share.mkdir()
    with Serving(settings, tmp_path, "--upload-to", share.as_uri()) as service:
        service.wait_until(lambda: _eras(share, stream.name, settings) > 0)
        before = _uploader()
        os.kill(before, signal.SIGKILL)
        known = _eras(share, stream.name, settings)
        service.wait_until(lambda: _eras(share, stream.name, settings) > known)
        after = _uploader()
        assert after != before
    assert "upload ended" in service.log
    with pytest.raises(ProcessLookupError):
        os.kill(after, 0)


def test_mills_alone_have_nothing_to_upload() -> None:
    mills = invoke("serve", "--only", "mill", "--upload-to", "file:///", code=InputError.exit_code)
    assert "mills have no store" in mills.err
    wrong = invoke("serve", "--upload-to", "ftp://bucket/prefix", code=BucketError.exit_code)
    assert "is no bucket" in wrong.err


def _uploader() -> int:
    (pid,) = [one.pid for one in psutil.Process().children(recursive=True) if "upload" in one.cmdline()]
    return int(pid)


def _eras(share: Path, stream: str, settings: Settings) -> int:
    """Send texts, without which no segment gets full; return how many eras the bucket has."""
    send(settings, TEXTS)
    if not (share / stream / "heads").is_dir():
        return 0
    bucket = Bucket.open(share.as_uri())
    heads = HeadLog(stream_of(bucket, stream))
    heads.look(bucket)
    return len(heads.eras)
