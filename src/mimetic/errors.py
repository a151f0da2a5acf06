"""Every error that mimetic raises on purpose.

    MimeticError
    ├── ConfigError (ValueError)              a flag, a config file, or a combination of settings
    ├── DatasetError (ValueError)
    │   ├── DatasetNotFound (FileNotFoundError)   nothing that looks like a dataset is there
    │   ├── DatasetFormatError                a file of the dataset breaks the format
    │   ├── EpisodeError                      an episode is missing, gapped or inconsistent
    │   └── VideoError                        a video file or frame cannot be read
    ├── CheckpointError (ValueError)
    │   ├── CheckpointNotFound (FileNotFoundError)
    │   ├── KeyMismatch                       weights and network do not match
    │   └── StatsError                        normalisation statistics are missing or ambiguous
    ├── CacheError (RuntimeError)             kept features of frames cannot be read or written
    ├── HubError (OSError)
    │   └── OfflineError                      the network is needed and not allowed or not there
    ├── DeviceError (RuntimeError)            a requested accelerator is absent
    ├── PrecisionError (ValueError)           a precision that this device cannot train in
    ├── ShapeError (ValueError)               a tensor has the wrong shape
    ├── TrainingError (RuntimeError)          a run that must stop (NaN loss, ...)
    ├── WorkerError (RuntimeError)            a process or machine that did a part of the work is gone
    ├── SimulationError (RuntimeError)        a simulated cell cannot go on
    ├── MissingExtra (ImportError)            an optional dependency is not installed
    └── Interrupted (KeyboardInterrupt)       the user stopped the run; what could be saved was saved

A message says what is wrong with the actual value and where; `hint` says what to do, as a command or flag.
Both are plain sentences without a full stop (`spec/style.md` 6).
"""

from __future__ import annotations


class MimeticError(Exception):
    """Base of all errors that a user can act on.

    Args:
        message: what is wrong and where (file, key, episode, frame, flag), with the actual value.
        hint: what to do next, one line or several; empty when the message says it all.
    """

    exit_code = 1

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.message, self.hint))


class ConfigError(MimeticError, ValueError):
    """A flag, a config file, or a combination of settings is wrong; the command must change."""

    exit_code = 2


class DatasetError(MimeticError, ValueError):
    """A dataset cannot be used as it is."""


class DatasetNotFound(DatasetError, FileNotFoundError):
    """There is no dataset at the given place."""

    exit_code = 2


class DatasetFormatError(DatasetError):
    """A file of the dataset breaks the LeRobotDataset format."""


class EpisodeError(DatasetError):
    """An episode is missing, gapped or inconsistent."""


class VideoError(DatasetError):
    """A video file or a frame in it cannot be read."""


class CheckpointError(MimeticError, ValueError):
    """A checkpoint cannot be used as it is."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """There is no checkpoint at the given place."""

    exit_code = 2


class KeyMismatch(CheckpointError):
    """Stored tensors and the network disagree in names or shapes."""


class StatsError(CheckpointError):
    """Normalisation statistics are missing, incomplete or ambiguous."""


class CacheError(MimeticError, RuntimeError):
    """Features of frames that are kept on disk cannot be read or written; the dataset itself is sound."""


class HubError(MimeticError, OSError):
    """The hub answered with an error."""


class OfflineError(HubError):
    """The network is needed and is not allowed, or is not there."""


class DeviceError(MimeticError, RuntimeError):
    """A requested accelerator is absent or unusable."""

    exit_code = 2


class PrecisionError(MimeticError, ValueError):
    """A precision that the chosen device cannot train in."""

    exit_code = 2


class ShapeError(MimeticError, ValueError):
    """A tensor has the wrong shape."""


class TrainingError(MimeticError, RuntimeError):
    """A training run had to stop."""


class WorkerError(MimeticError, RuntimeError):
    """A process or machine that did a part of the work is gone; what it had finished is kept."""


class SimulationError(MimeticError, RuntimeError):
    """A simulated cell cannot go on: its physics broke down, or its scripted operator does not succeed."""


class MissingExtra(MimeticError, ImportError):
    """An optional dependency is not installed; the hint holds the install command."""


class Interrupted(MimeticError, KeyboardInterrupt):
    """The user stopped the run; the message says what was saved."""

    exit_code = 130
