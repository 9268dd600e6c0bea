"""Whom a client trusts: the certificates in a file, taken up anew when somebody changes it."""

import logging
import ssl
from pathlib import Path

from mandor.errors import Invalid

log = logging.getLogger(__name__)


class Trust:
    """Old and new authorities may stand in the file together, so that servers can change theirs one by one."""

    def __init__(self, ca_file: str = "") -> None:
        self._file = Path(ca_file) if ca_file else None
        self._context: ssl.SSLContext | bool = True
        self._written_at = 0
        if self._file is not None:
            try:
                self._written_at = self._file.stat().st_mtime_ns
                self._context = ssl.create_default_context(cafile=self._file)
            except OSError as error:
                raise Invalid(f"cannot use the certificates in {self._file}: {error}") from error

    def context(self) -> ssl.SSLContext | bool:
        """For the connections to come; True: whom this machine trusts."""
        if self._file is not None:
            self._look(self._file)
        return self._context

    def _look(self, file: Path) -> None:
        try:
            written_at = file.stat().st_mtime_ns
            if written_at == self._written_at:
                return
            self._written_at = written_at
            self._context = ssl.create_default_context(cafile=file)
        except OSError as error:
            log.warning("the certificates in %s are not taken up: %s", file, error)
        else:
            log.info("the certificates in %s are trusted from now on", file)
