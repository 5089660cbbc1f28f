"""The program of a process that makes shards: tasks in, what was made out, over its standard streams.

It ends when the process that started it does, however that ended: a second pipe is then at its end.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

from .crew import receive, send
from .making import Task, make_shards


def main(lifeline: int) -> None:
    """Work until there is no more to do.

    Args:
        lifeline: A descriptor, at whose end nobody waits for anything any more.
    """
    # Ctrl-C is for the process that everybody sees, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    tasks = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    while (content := receive(tasks)) is not None:
        try:
            task: Task = pickle.loads(content)
            for made in make_shards(task):
                send(answers, pickle.dumps(made))
            send(answers, pickle.dumps(None))
        except Exception as error:
            send(answers, _pickled(error))


def _pickled(error: Exception) -> bytes:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception as why:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error} (cannot travel: {why})"))
    return content


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
