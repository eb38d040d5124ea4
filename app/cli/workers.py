"""``tokenmill mill``, ``segment`` and ``sequencer``: one worker, as this process, until it is told to end.

`serve` starts several of each, so this loads neither supervisor nor mirror, and Faust only where a worker runs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenmill.errors import TokenMillError

from ..settings import Settings
from ..telemetry.reporting import last_words
from .options import command

if TYPE_CHECKING:  # loads Faust, which takes longer than most other commands take to run
    from ..worker.transport import BatchApp


@command(
    "mill",
    "tokenmill mill",
    "tokenmill mill --log-format json",
    shown=("bootstrap_servers", "raw_topics", "tokenizer", "sequence_length"),
)
def mill(settings: Settings) -> None:
    """Run one worker that turns raw topics into token topics, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Each start continues where the last one ended.
    """
    # Here, because Faust takes longer to load than most other commands to run.
    from ..mill.app import create_app  # noqa: PLC0415

    _run_worker(settings, create_app)


@command(
    "segment",
    "tokenmill segment",
    "tokenmill segment --log-format json",
    shown=("bootstrap_servers", "store", "raw_topics"),
)
def segment(settings: Settings) -> None:
    """Run one worker that appends token topics to the store, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Each start continues where the last one ended.
    """
    from ..segments.app import create_app  # noqa: PLC0415 - as above

    _run_worker(settings, create_app)


@command(
    "sequencer",
    "tokenmill sequencer",
    "tokenmill sequencer --log-format json",
    shown=("bootstrap_servers", "raw_topics", "dedup"),
)
def sequencer(settings: Settings) -> None:
    """Run one worker that judges which documents were seen before, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Only where `dedup` is on has it work.
    """
    settings.require_domains()
    from ..sequencer.app import create_app  # noqa: PLC0415 - as above

    _run_worker(settings, create_app)


def _run_worker(settings: Settings, create_app: Callable[[Settings], "BatchApp"]) -> None:
    from ..worker.run import run_worker  # noqa: PLC0415 - as above

    try:
        app = create_app(settings)
    except TokenMillError as error:
        last_words(str(error))  # the supervisor repeats them when it gives up
        raise
    run_worker(app, settings)
