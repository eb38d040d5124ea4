"""`tokenmill` on whatever Faust and aiokafka Python finds: ``python -m tests.app.newest_libraries mill``.

The first line of its output names both versions.
"""

import aiokafka
import faust

from tests.app.stock_aiokafka import install_nothing
from tokenmill.app.cli import main
from tokenmill.app.kafka import fastpath
from tokenmill.app.kafka.cluster import TESTED

if __name__ == "__main__":
    print("faust-streaming", faust.__version__, "aiokafka", aiokafka.__version__, aiokafka.__file__, flush=True)  # noqa: T201
    TESTED.update({"faust-streaming": faust.__version__, "aiokafka": aiokafka.__version__})
    fastpath.install = install_nothing  # it is written for one version
    main()
