"""Digests of a release's images: which images it has, and its templates with digests in the place of tags."""

import msgspec

from mandor.model.image_reference import pinned
from mandor.model.workload import GroupTemplate, Release


def images_of(release: Release) -> frozenset[str]:
    """The references of all images of all forms of a release."""
    forms = (form for group in release.spec.groups.values() for form in group.forms)
    return frozenset(task.image for form in forms for task in form.tasks.values() if task.image)


def with_digests(release: Release, form: GroupTemplate) -> GroupTemplate:
    """A form of one of its groups, with each image by its digest where that is known."""
    if not release.status.images:
        return form
    tasks = {
        name: msgspec.structs.replace(task, image=pinned(task.image, digest))
        if task.image and (digest := release.status.images.get(task.image))
        else task
        for name, task in form.tasks.items()
    }
    return msgspec.structs.replace(form, tasks=tasks)
