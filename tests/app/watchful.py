"""`tokenmill`, whose mill looks for compacted topics twice a second: ``python -m tests.app.watchful mill``."""

from tokenmill.app.cli import main
from tokenmill.app.mill import topic_changes

if __name__ == "__main__":
    topic_changes.LOOK_SECONDS = 0.5  # type: ignore[misc]
    main()
