"""Digests of a release's images: lists its images and replaces tags by digests in its templates."""

import msgspec

from mandor.model.group import GroupTemplate
from mandor.model.image_reference import pinned
from mandor.model.workload import Release


def images_of(release: Release) -> frozenset[str]:
    """Return the references of all images in all forms of a release."""
    forms = (form for group in release.spec.groups.values() for form in group.forms)
    return frozenset(task.image for form in forms for task in form.tasks.values() if task.image)


def with_digests(release: Release, form: GroupTemplate) -> GroupTemplate:
    """Return a form of one of the release's groups with known digests in place of tags."""
    if not release.status.images:
        return form
    tasks = {
        name: msgspec.structs.replace(task, image=pinned(task.image, digest))
        if task.image and (digest := release.status.images.get(task.image))
        else task
        for name, task in form.tasks.items()
    }
    return msgspec.structs.replace(form, tasks=tasks)
