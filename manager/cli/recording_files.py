"""Files of `equipoise record`, as commands read them."""

from __future__ import annotations

from pathlib import Path

from manager.errors import RecordingError
from manager.replay.recording import Recording, read_lines


def read_recording(file: str) -> Recording:
    """The recording in a file. Raises RecordingError naming file, line, field and value."""
    try:
        with Path(file).open(encoding="utf-8") as lines:
            return read_lines(lines)
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{file}: not a recording, which is text in UTF-8") from error
    except RecordingError as error:
        raise RecordingError(f"{file}: {error}") from error
