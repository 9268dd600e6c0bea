"""Importers: convert files of other tools into manifests, with a report of every key that was not mapped."""
