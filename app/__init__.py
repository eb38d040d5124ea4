"""The service: Faust apps that mill raw text into token blocks and append them to segments."""

import sys

# `python -m tokenmill.app.…` puts the working directory first on the module path, before anything of ours is imported;
# it may be a folder of data (`app.milling.foreign_code`). `-m` stands in for the program's name just until the
# module is found. What Python imports for `-m` itself, only its own `-P` can guard: all processes that we start have
# it.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]
