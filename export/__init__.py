"""Workstation side: turns a model source into a bundle. Needs the ``export`` extra."""

from edgechat.export.export import PRECISIONS, Progress, export_model
from edgechat.export.sources import open_source

__all__ = ["PRECISIONS", "Progress", "export_model", "open_source"]
