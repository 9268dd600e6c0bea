"""`mandor backup` and `mandor restore`: the state of a cluster in one file."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from mandor.cli.options import connected
from mandor.errors import Invalid, MandorError, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

BLOCK = 256 << 10
QUIET_SECONDS = 120.0


@click.command("backup")
@click.argument("file", metavar="FILE|-")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@connected
def backup_command(client: "Client", file: str, force: bool) -> None:
    """Save the state of the cluster to a file.

    The backup is consistent and taken while the cluster runs. It contains every object of the cluster, so protect the
    file. `mandor restore` restores it into SQLite or etcd, independent of the store it came from.
    """
    from mandor.store.dump import count_objects

    if file == "-":
        if sys.stdout.isatty():
            raise click.UsageError("a backup cannot be written to a terminal; give a FILE")
        _copy(client, sys.stdout.buffer)
        return
    target = Path(file)
    if target.exists() and not force:
        raise Invalid(f"{target} exists already", hint="use --force to overwrite it")
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        with open(part, "xb", opener=_private) as out:
            count = _copy(client, out)
            out.flush()
            os.fsync(out.fileno())
        objects = count_objects(part)
        part.replace(target)
    except OSError as error:
        raise Invalid(f"cannot write {target}: {(error.strerror or str(error)).lower()}") from error
    finally:
        part.unlink(missing_ok=True)
    click.echo(f"saved {objects:,} objects in {target} ({count:,} bytes)", err=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _copy(client: "Client", out: BinaryIO) -> int:
    from http.client import HTTPException

    from mandor.cli.progress import Progress

    count = 0
    with Progress("saving") as progress:
        try:
            with client.stream("/v1/backup", accept="*/*", quiet_seconds=QUIET_SECONDS) as answer:
                while block := _read(answer):
                    out.write(block)
                    count += len(block)
                    progress.text = f"saving, {count:,} bytes so far"
        except (TimeoutError, ConnectionError, HTTPException) as error:
            raise Unavailable(f"the connection ended after {count:,} bytes of the backup", hint="try again") from error
    return count


def _read(answer: Any) -> bytes:
    found: bytes = answer.read(BLOCK)
    return found


@click.command("restore")
@click.argument("file", metavar="FILE")
@click.option("--store", metavar="URL", help="sqlite:PATH or etcd://HOST:PORT,…/PREFIX.  [default: SQLite in --data]")
@click.option("--data", metavar="DIR", default=".mandor", show_default=True, help="The server's data directory.")
@click.option("--store-ca", metavar="FILE", help="CA certificates for etcds.")
@click.option("--store-cert", metavar="FILE", help="Client certificate for the store.")
@click.option("--store-key", metavar="FILE", help="Client key for the store.")
@click.option("--store-user", metavar="NAME", help="User name for the store.")
@click.option("--store-password-file", metavar="FILE", help="File with the password for the store.")
def restore_command(file: str, **flags: str | None) -> None:
    """Restore saved state into an empty store.

    No server may run on that store. The cluster's epoch is increased: instances that agents still run and that the
    saved state does not contain are reported and kept running, not killed.
    """
    from mandor.roots.restore import run

    if not Path(file).is_file():
        raise Invalid(f"the file {file} does not exist")
    try:
        summary = run(file, flags={name: value for name, value in flags.items() if value is not None})
    except OSError as error:
        raise MandorError(f"cannot restore {file}: {(error.strerror or str(error)).lower()}") from error
    click.echo(summary, err=True)
