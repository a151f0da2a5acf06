"""How a conversion shows how far it is: a bar that the command line draws, and a line in the log every minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

logger = logging.getLogger(__name__)

Bar = Callable[[str, str, int], AbstractContextManager[Callable[[int], None]]]
"""Title, unit, how many; gives the function to call with the number that is done."""
_LOG_S = 60.0


def no_bar(title: str, unit: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Draws nothing."""
    return nullcontext(lambda done: None)


@contextmanager
def show_stage(
    bar: Bar, title: str, unit: str, total: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Show one stage of the work.

    Args:
        bar: draws the bar, where there is a terminal.
        title: what goes on.
        unit: what is counted, in the singular.
        total: how many there are; nothing is shown for none.
        clock: seconds.

    Yields:
        The function to call with the number that is done.
    """
    if not total:
        yield lambda done: None
        return
    last = clock()
    with bar(title, unit, total) as advance:

        def both(done: int) -> None:
            nonlocal last
            advance(done)
            if clock() - last >= _LOG_S:
                last = clock()
                logger.info("%s: %d of %d %ss", title, done, total, unit)

        yield both
