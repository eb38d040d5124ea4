"""`tokenmill`, whose mill looks for compacted topics twice a second: ``python -m tests.app.watchful mill``."""

from tokenmill.app.cli import main
from tokenmill.app.mill import compaction

if __name__ == "__main__":
    compaction.LOOK_SECONDS = 0.5  # type: ignore[misc]
    main()
