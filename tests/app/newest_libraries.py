"""`tokenmill` on whatever Faust and aiokafka Python finds: ``python -m tests.app.newest_libraries mill``.

The signatures are checked as always; only the versions may be others.
"""

import aiokafka
import faust

from tokenmill.app.cli import main
from tokenmill.app.worker import faust_setup as faust_internals

if __name__ == "__main__":
    print("faust-streaming", faust.__version__, "aiokafka", aiokafka.__version__, aiokafka.__file__, flush=True)  # noqa: T201
    faust_internals.VERSIONS = ()  # type: ignore[misc,assignment]
    main()
