from __future__ import annotations
from .errors import FileError
class FileInfo: ...
class Transfer: ...
class Files:
    def __init__(self, call): self._call = call
def file_error(errno: int, message: str, path: str) -> FileError:
    return FileError(errno, message, path)
