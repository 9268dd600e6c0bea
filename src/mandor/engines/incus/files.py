"""Copies the files of a task into an instance before its start."""

from __future__ import annotations

from pathlib import PurePosixPath

from mandor.engines.base import Launch
from mandor.engines.containers.launches import with_mapped_user
from mandor.engines.incus.client import IncusClient, path_of
from mandor.errors import Invalid


async def put_files(api: IncusClient, name: str, launch: Launch) -> None:
    user = str(0 if launch.user is None else with_mapped_user(launch).user).partition(":")[0]
    owner = {"X-Incus-uid": user, "X-Incus-gid": user} if user.isdecimal() else {}
    made: set[PurePosixPath] = set()
    for file in launch.files:
        place = PurePosixPath(launch.working_dir or "/", file.path)
        if ".." in place.parts or not place.is_absolute():
            raise Invalid(f"the path of file {file.path!r} must not contain `..`")
        for folder in reversed(place.parents[:-1]):
            if folder not in made:
                made.add(folder)
                headers = {"X-Incus-type": "directory", "X-Incus-mode": "0755"}
                await api.call("POST", path_of(name, "files"), query={"path": str(folder)}, headers=headers)
        headers = {"X-Incus-type": "file", "X-Incus-mode": file.mode.rjust(4, "0"), "X-Incus-write": "overwrite"}
        await api.call(
            "POST",
            path_of(name, "files"),
            query={"path": str(place)},
            data=file.content.encode(),
            headers=owner | headers,
        )
