"""Every fault a user can meet, and the exit code it ends a command with.

EdgekvError                       1  failure
├── InvalidValue                  2  a flag, field or configuration value that cannot be used
├── ModelNotFound                 3  no such model, or it could not be downloaded
├── DoesNotFit                    4  more memory than the machine or the budget has
├── UnsupportedModel              5  a model this version cannot run
└── DamagedFile                   5  a file that is truncated, malformed or fails its checksum
    └── TemplateError             5  a chat template that refuses or breaks
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes, the same for every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    MODEL_NOT_FOUND = 3
    DOES_NOT_FIT = 4
    UNSUPPORTED = 5
    INTERRUPTED = 130


class EdgekvError(Exception):
    """A fault explained in one line: who, what was got, and what to do."""

    exit_code = ExitCode.FAILURE


class InvalidValue(EdgekvError):
    exit_code = ExitCode.USAGE


class ModelNotFound(EdgekvError):
    exit_code = ExitCode.MODEL_NOT_FOUND


class DoesNotFit(EdgekvError):
    exit_code = ExitCode.DOES_NOT_FIT


class UnsupportedModel(EdgekvError):
    exit_code = ExitCode.UNSUPPORTED


class DamagedFile(EdgekvError):
    exit_code = ExitCode.UNSUPPORTED


class TemplateError(DamagedFile):
    pass
