"""`tokenmill` on whatever Faust and aiokafka Python finds: ``python -m tests.app.newest_libraries mill``.

For any entry whose versions must be seen: where they differ from the tested ones, a warning in the log says so.
"""

import aiokafka
import faust

from tokenmill.app.cli import main

if __name__ == "__main__":
    print("faust-streaming", faust.__version__, "aiokafka", aiokafka.__version__, aiokafka.__file__, flush=True)  # noqa: T201
    main()
