"""Whom a client trusts changes with its file, and a spoilt file changes nothing."""

import os
import ssl
from pathlib import Path

import pytest
import trustme

from mandor.client.trust import Trust
from mandor.errors import Invalid


def trusted(trust: Trust) -> int:
    context = trust.context()
    assert isinstance(context, ssl.SSLContext)
    return len(context.get_ca_certs())


def write(path: Path, content: bytes, at: int) -> None:
    path.write_bytes(content)
    os.utime(path, (at, at))  # later than before, whatever the file system's clock can tell


def test_a_changed_file_is_trusted_from_the_next_connection_on(tmp_path: Path) -> None:
    old, new, path = trustme.CA().cert_pem.bytes(), trustme.CA().cert_pem.bytes(), tmp_path / "ca.pem"
    write(path, old, 1)
    trust = Trust(str(path))
    assert trusted(trust) == 1
    assert trust.context() is trust.context()
    write(path, old + new, 2)
    assert trusted(trust) == 2
    write(path, new[:100], 3)
    assert trusted(trust) == 2  # half of a file is not taken up
    path.unlink()
    assert trusted(trust) == 2
    write(path, new, 4)
    assert trusted(trust) == 1


def test_without_a_file_the_machine_decides_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    assert Trust().context() is True
    with pytest.raises(Invalid, match="cannot use the certificates"):
        Trust(str(tmp_path / "none.pem"))
