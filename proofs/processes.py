"""Work spread over processes, which end with whoever asked for it."""

from __future__ import annotations

import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(do: Callable[[T], R], work: Sequence[T], jobs: int) -> Generator[tuple[int, R], None, None]:
    """Numbers of pieces of work with their results, as they get ready.

    Where this ends early (Ctrl-C, an error, nobody asks for more), the processes are killed, whatever they do.

    Raises:
        BrokenProcessPool: a process died.
        RuntimeError: the work raised an error that cannot be handed on as it is; it is told in words.
    """
    if jobs <= 1 or len(work) <= 1:
        yield from ((number, do(piece)) for number, piece in enumerate(work))
        return
    pool = ProcessPoolExecutor(min(jobs, len(work)), mp_context=get_context("spawn"))
    finished = False
    try:
        with _out_of_reach():
            waiting = {pool.submit(_told, do, piece): number for number, piece in enumerate(work)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
        finished = True
    except BrokenPipeError as error:  # of a pipe to a process: nothing else is written here
        raise BrokenProcessPool("a process died while it was started") from error
    finally:
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        if not finished:
            for process in processes:
                process.kill()


def _told(do: Callable[[T], R], piece: T) -> R:
    """An error that does not come through a pipe would look like the end of the process: it is told in words."""
    try:
        return do(piece)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError("".join(traceback.format_exception(error))) from None
        raise


@contextmanager
def _out_of_reach() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and the processes that are started in it never see it: one that is half
    started could neither be killed nor keep quiet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # is inherited
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
