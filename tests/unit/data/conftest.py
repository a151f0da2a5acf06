"""What the tests of the data room share."""

import logging

import pytest


class _Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    @property
    def text(self):
        return "\n".join(self.messages)


@pytest.fixture
def said():
    """Log messages of the data room; independent of how the rest of the process has set up logging."""
    handler = _Records()
    logger = logging.getLogger("mimetic.data")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
