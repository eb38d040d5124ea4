"""`tokenmill` with aiokafka as it is, without the fast path: ``python -m tests.app.stock_aiokafka mill``."""

from typing import Final

from tokenmill.app.cli import main
from tokenmill.app.kafka import fastpath

LINE: Final = "aiokafka is used as it is"


def install_nothing() -> None:
    print(LINE, flush=True)  # noqa: T201


if __name__ == "__main__":
    fastpath.install = install_nothing
    main()
