"""The end of a process of ours."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def exit_with(code: int) -> NoReturn:
    """End this process with ``code`` after what was registered for its end, and before the interpreter takes
    itself apart, which with torch loaded takes seconds. For processes that are ours alone and whose files are
    written.
    """
    # as multiprocessing ends its own: waits for threads, ends child processes, removes temporary folders
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a reader that has gone, a stream that is closed
            stream.flush()
    os._exit(code)
