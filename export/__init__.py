"""Workstation side: turns a model source into a bundle. Needs the ``export`` extra."""

from edgechat.export.export import Progress, export_model
from edgechat.export.sources import open_source
from edgechat.export.targets import TARGETS, check_options

__all__ = ["TARGETS", "Progress", "check_options", "export_model", "open_source"]
