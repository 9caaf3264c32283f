"""Processes that a test forks, as data loaders do."""

from __future__ import annotations

import os
import signal
from typing import Callable


def run_in_fork(work: Callable[[], int]) -> int:
    """Returns what `work` returns in a fork of this process, 1 if it raises anything, and -14 if it takes a minute."""
    child = os.fork()
    if child == 0:
        # Whoever waits for a thread that is not here would wait for ever. Other tests have handlers of their own.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        outcome = 1
        try:
            outcome = work()
        finally:
            os._exit(outcome)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
