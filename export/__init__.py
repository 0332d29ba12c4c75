"""Workstation side: turns a model source into a bundle. Needs the ``export`` extra."""

from edgechat.export.export import PRECISIONS, Progress, check_options, export_model
from edgechat.export.sources import open_source

__all__ = ["PRECISIONS", "Progress", "check_options", "export_model", "open_source"]
