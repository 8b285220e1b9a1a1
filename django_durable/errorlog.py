"""Loggers whose lines on errors keep the bounds that stored errors have.

Most errors that the package logs are users': their texts may be endless, raise, or take their time.
"""

from __future__ import annotations

import logging

from django_durable.errortext import ErrorText


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name, with the bounds."""
    logger = logging.getLogger(name)
    logger.addFilter(_bound)
    return logger


def _bound(record: logging.LogRecord) -> bool:
    """Give a record the text of its error, which formatters use as it is; the error stays in it."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        record.exc_text = ErrorText.told_of(error).traceback.rstrip("\n")
    return True
